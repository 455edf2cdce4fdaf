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

}  // namespace tessera::ops
