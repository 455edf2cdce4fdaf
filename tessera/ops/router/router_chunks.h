// The order of the router's sums over tokens: tokens are added in chunks, and then the sums of the chunks are added in
// order. CPU and GPU use the same chunks, so their sums have the same bits.
#pragma once
#include <cstdint>

namespace tessera::ops {

// Number of tokens of a chunk: of the sums of probabilities, counts and squares, and of the weight gradient.
inline constexpr std::int64_t kRouterChunk = 256, kRouterGradientChunk = 512;

}  // namespace tessera::ops
