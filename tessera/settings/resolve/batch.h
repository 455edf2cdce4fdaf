// The microbatches of a step. All functions are pure.
#pragma once
#include <cstdint>

#include "tessera/settings/config.h"
#include "tessera/shard/ways/lookup.h"

namespace tessera::settings {

// Returns how the embedding is read: the number of tokens in a microbatch, and the lookup.
shard::RowReads embedding_reads(const TrainConfig& config);
// Returns the global batch with which every reader has one microbatch in a step.
std::int64_t one_microbatch(const TrainConfig& config, std::int64_t ranks);
// Throws InputError if the readers do not have equal numbers of microbatches. If places are unused, throws the errors
// of batch_shape instead.
void check_global_batch(const TrainConfig& config);

}  // namespace tessera::settings
