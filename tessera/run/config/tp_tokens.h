// Whether tp ranks divide the tokens of activations among themselves, and how these tokens travel.
#pragma once
#include "tessera/run/config/config.h"

namespace tessera::run {

// Returns whether the tp ranks divide the tokens (--sequence-parallel).
inline bool splits_tokens(const TrainConfig& config) {
  return config.tp > 1 && config.sequence_parallel.value_or(true);
}
// The largest tp with pieces by default. A transfer over t ranks has t - 1 pieces, and each piece costs a latency.
inline constexpr std::int64_t kMaxRanksOfPieces = 8;
// Returns whether these tokens travel in pieces beside products (--tp-overlap).
inline bool overlaps_tp(const TrainConfig& config) {
  return config.tp_overlap.value_or(splits_tokens(config) && config.tp <= kMaxRanksOfPieces);
}

}  // namespace tessera::run
