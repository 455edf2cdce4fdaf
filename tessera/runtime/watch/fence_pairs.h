// Time intervals of a lane. Each interval is between two timed fences.
#pragma once
#include <utility>
#include <vector>

#include "tessera/base/lanes/fence.h"

namespace tessera::runtime {

using FencePairs = std::vector<std::pair<base::Fence, base::Fence>>;  // begin, end

// Returns the total seconds of the intervals. Called after the lane has passed all these fences.
inline double seconds_of(const FencePairs& stretches) {
  double seconds = 0;
  for (const auto& [begin, end] : stretches) seconds += end.seconds_since(begin);
  return seconds;
}

}  // namespace tessera::runtime
