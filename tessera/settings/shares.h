// Divides the samples of each step over the replicas. Pure.
#pragma once
#include <cstdint>
#include <vector>

#include "tessera/data/sampler.h"
#include "tessera/models/model_config.h"
#include "tessera/settings/config.h"

namespace tessera::settings {

// The numbers of units of a model that a tp group divides among its ranks.
struct TpUnits {
  std::int64_t heads = 1, ffn = 1, vocabulary = 1;
};
TpUnits units_of(const models::ModelConfig& model);

// Returns how the global batch is split over the replicas that have a rank, in the order of replicas. A replica with an
// unused place is a reduced replica. The readers of a replica are its tp groups with a rank. Without --reduced-batch
// the shares are equal. If --reduced-batch is a number, each reduced replica takes this number of sequences, and the
// other replicas share the rest equally. If --reduced-batch is auto, the share of a replica is proportional to its
// number of readers divided by its work. The work of a replica is that of its rank with the most units, divided by the
// work of a rank in a full group. Throws InputError for a --reduced-batch that leaves no valid
// shares for the other replicas.
data::BatchShape batch_shape(const TrainConfig& config, const TpUnits& units);

}  // namespace tessera::settings
