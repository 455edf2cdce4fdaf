#pragma once
#include <cstdint>

#include "tessera/base/cuda_stream.h"
#include "tessera/quant/dtype.h"

namespace tessera::ops {

// Splits stacked rows q | k | v into three tensors, or joins them. Forward reads `stacked`; backward writes it.
template <typename Stacked, typename Part>
struct SplitRope {
  quant::DType type = quant::DType::fp32;
  std::int64_t tokens = 0, q_heads = 0, kv_heads = 0, head_dim = 0;
  const std::int64_t* positions = nullptr;        // [tokens]
  const void *cosine = nullptr, *sine = nullptr;  // [table_rows, head_dim / 2], accumulator type
  std::int64_t table_rows = 0;
  Stacked* stacked = nullptr;                     // [tokens, (q_heads + 2 kv_heads) head_dim]
  Part *q = nullptr, *k = nullptr, *v = nullptr;  // [tokens, heads, head_dim]
};
using SplitRopeForward = SplitRope<const void, void>;
using SplitRopeBackward = SplitRope<void, const void>;

namespace cpu {
void split_rope_forward(const SplitRopeForward& arguments);
void split_rope_backward(const SplitRopeBackward& arguments);
}  // namespace cpu
namespace cuda {  // q and k of a token become NaN if its position is not in the table
void split_rope_forward(const SplitRopeForward& arguments, base::CudaStream stream);
void split_rope_backward(const SplitRopeBackward& arguments, base::CudaStream stream);
}  // namespace cuda

}  // namespace tessera::ops
