#pragma once
#include <cstdint>
#include <span>

#include "tessera/quant/dtype.h"

namespace tessera::ops {

// Arguments of expand_heads and reduce_heads. Stored heads are [tokens, heads, head_dim] of `type`. Query heads are
// [tokens, map.size(), head_dim] in the accumulator type. Query head h belongs to stored head map[h].
struct HeadArguments {
  quant::DType type = quant::DType::fp32;
  std::int64_t tokens = 0, heads = 0, head_dim = 0;
  std::span<const int> map;
  const void* from = nullptr;
  void* to = nullptr;
};
namespace cpu {
void expand_heads(const HeadArguments& arguments);  // copies each stored head to its query heads
void reduce_heads(const HeadArguments& arguments);  // sums the query heads of each stored head in order and rounds
                                                    // once; a stored head without query heads becomes 0
}  // namespace cpu

// One query head of one sequence or document. Every input and result is `length` rows of head_dim elements in the
// accumulator type. The starts of two rows are `stride` elements apart. Forward writes `out`; backward writes dq, dk
// and dv.
struct PlainArguments {
  quant::DType type = quant::DType::fp32;
  std::int64_t length = 0, stride = 0, head_dim = 0;
  double scale = 1;
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  const void* dout = nullptr;  // null for forward
  void* out = nullptr;
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;
};
namespace cpu {
// Returns true if the inputs and the scores of the visible tokens are finite. Computes scores only if the magnitudes of
// q and k do not rule out an overflow.
bool is_finite(const PlainArguments& arguments);
// Compute softmax(scale q k^T) v and its gradients row by row, over the visible tokens only. NaN and infinities
// propagate as in IEEE arithmetic. These functions are slow. They stop computing the scores of a row at the first score
// that makes the softmax of the row NaN.
void plain_forward(const PlainArguments& arguments);
void plain_backward(const PlainArguments& arguments);
}  // namespace cpu

// Arguments of cached_attention. The `count` query tokens follow the first `first` tokens of the sequence. q, out:
// [count, map.size(), head_dim]. k, v: [first + count or more, kv_heads, head_dim].
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
