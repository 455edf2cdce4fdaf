#pragma once
#include <cstdint>
#include <span>

#include "tessera/quant/dtype.h"

namespace tessera::ops {

// Between heads as they are stored ([tokens, heads, head_dim] of `type`) and one operand a query head in the
// accumulator type ([tokens, map.size(), head_dim]); query head h belongs to stored head map[h].
struct HeadArguments {
  quant::DType type = quant::DType::fp32;
  std::int64_t tokens = 0, heads = 0, head_dim = 0;
  std::span<const int> map;
  const void* from = nullptr;
  void* to = nullptr;
};
namespace cpu {
void expand_heads(const HeadArguments& arguments);  // stored -> query heads
void reduce_heads(const HeadArguments& arguments);  // sums in query head order, rounded once -> stored; none: 0
}  // namespace cpu

// One query head of one sequence or document: `length` rows of head_dim elements, `stride` elements apart, in the
// accumulator type. Its results have the same layout; forward writes out, backward dq, dk and dv.
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
// Whether the inputs and the scores of the visible tokens are finite. Reads the inputs once unless scores may overflow.
bool is_finite(const PlainArguments& arguments);
// The formula softmax(scale q k^T) v row by row, over visible tokens only: NaN and infinities spread as IEEE arithmetic
// spreads them. Slow. A row whose softmax is NaN takes time for its first scores only.
void plain_forward(const PlainArguments& arguments);
void plain_backward(const PlainArguments& arguments);
}  // namespace cpu

}  // namespace tessera::ops
