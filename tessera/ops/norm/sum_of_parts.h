// A matrix as the sum of matrices (parts).
#pragma once

namespace tessera::ops {

// The largest number of parts.
inline constexpr int kMaxSummedParts = 8;

// The parts are added in their order in the accumulator type, and the sum is rounded once. A single part is the matrix
// itself.
struct SumOfParts {
  const void* parts[kMaxSummedParts] = {};
  int count = 0;
};

}  // namespace tessera::ops
