// Arithmetic that the kernels share: the functions of quant/floating.h, and a sum whose order depends only on the
// number of terms. Internal to ops. Does not include the tensor library.
#pragma once
#include <cstdint>

#include "tessera/quant/floating.h"

namespace tessera::ops {

using quant::Accumulator;
using quant::dispatch_accumulator;
using quant::dispatch_floating;
using quant::load;
using quant::round_to;

// Returns term(0) + ... + term(count - 1). Adds term i to partial sum i mod kLanes. Then adds the kLanes partial sums
// as a tree.
inline constexpr int kLanes = 32;
template <typename A, typename Term>
inline A lane_sum(std::int64_t count, Term term) {
  A lanes[kLanes] = {};
  std::int64_t start = 0;
  for (; start + kLanes <= count; start += kLanes)
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += term(start + lane);
  for (int lane = 0; start + lane < count; ++lane) lanes[lane] += term(start + lane);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  return lanes[0];
}

}  // namespace tessera::ops
