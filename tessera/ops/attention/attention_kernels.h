#pragma once
#include <cstdint>
#include <span>

#include "tessera/quant/dtype.h"

namespace tessera::ops {

// Copies between stored heads ([tokens, heads, head_dim] of `type`) and operands with one head per query head ([tokens,
// map.size(), head_dim] in the accumulator type). Query head h belongs to stored head map[h].
struct HeadArguments {
  quant::DType type = quant::DType::fp32;
  std::int64_t tokens = 0, heads = 0, head_dim = 0;
  std::span<const int> map;
  const void* from = nullptr;
  void* to = nullptr;
};
namespace cpu {
void expand_heads(const HeadArguments& arguments);  // stored heads to query heads
void reduce_heads(const HeadArguments& arguments);  // adds query heads in order and rounds the sums once to the type of
                                                    // the stored heads; a stored head without query heads becomes 0
}  // namespace cpu

// One query head of one sequence or document: `length` rows of head_dim elements in the accumulator type, `stride`
// elements apart. Results have the same layout. Forward writes `out`; backward writes dq, dk and dv.
struct PlainArguments {
  quant::DType type = quant::DType::fp32;
  std::int64_t length = 0, stride = 0, head_dim = 0;
  double scale = 1;
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  const void* dout = nullptr;  // null: forward
  void* out = nullptr;
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;
};
namespace cpu {
// Returns true if the inputs and the scores of the visible tokens are finite. Reads the inputs once, unless scores may
// overflow.
bool is_finite(const PlainArguments& arguments);
// Computes softmax(scale q k^T) v row by row over the visible tokens only. NaN and infinities propagate as in IEEE
// arithmetic. The functions are slow. If the softmax of a row is NaN, only the first scores of the row are computed.
void plain_forward(const PlainArguments& arguments);
void plain_backward(const PlainArguments& arguments);
}  // namespace cpu

// Arguments of cached_attention: `count` query tokens, which follow `first` other tokens. q, out: [count, map.size(),
// head_dim]. k, v: [at least first + count, kv_heads, head_dim].
struct CachedAttentionArguments {
  quant::DType type = quant::DType::fp32;
  std::int64_t first = 0, count = 0, kv_heads = 0, head_dim = 0;
  std::span<const int> map;  // the key/value head of each query head
  double scale = 1;
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  void* out = nullptr;
};
namespace cpu {
// Computes softmax(scale q k^T) v row by row. NaN and infinities propagate as in IEEE arithmetic.
void cached_attention(const CachedAttentionArguments& arguments);
}  // namespace cpu

}  // namespace tessera::ops
