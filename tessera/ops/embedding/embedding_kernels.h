#pragma once
#include <cstdint>

#include "tessera/base/cuda_stream.h"
#include "tessera/ops/id_ranges.h"
#include "tessera/quant/dtype.h"

namespace tessera::ops {

struct EmbeddingArguments {
  quant::DType type = quant::DType::fp32;
  std::int64_t tokens = 0, hidden = 0;
  IdRanges part;                      // ids of this rank's rows
  const std::int64_t* ids = nullptr;  // [tokens]
  const void* rows = nullptr;         // forward: weight [vocabulary, hidden]; backward: dy [tokens, hidden]
  void* result = nullptr;             // forward: y [tokens, hidden]; backward: dweight, accumulator type

  std::int64_t vocabulary() const { return part.rows(); }
};
namespace cpu {
void embedding_forward(const EmbeddingArguments& arguments);
void embedding_backward(const EmbeddingArguments& arguments);  // adds to `result`
}  // namespace cpu

struct EmbeddingParts {
  void* scratch = nullptr;  // embedding_backward_scratch() bytes, aligned to 256
  bool accumulate = false;  // true: adds to `result`; false: overwrites the whole result
};
namespace cuda {
void embedding_forward(const EmbeddingArguments& arguments, base::CudaStream stream);
std::int64_t embedding_backward_scratch(const EmbeddingArguments& arguments);
void embedding_backward(const EmbeddingArguments& arguments, const EmbeddingParts& parts, base::CudaStream stream);
}  // namespace cuda

}  // namespace tessera::ops
