// The part of each step's samples that each replica computes. Pure.
#pragma once
#include <cstdint>
#include <vector>

#include "tessera/data/sampler.h"
#include "tessera/models/model_config.h"
#include "tessera/run/config/config.h"

namespace tessera::run {

// Units of a model that a tp group divides among its ranks.
struct TpUnits {
  std::int64_t heads = 1, ffn = 1, vocabulary = 1;
};
TpUnits units_of(const models::ModelConfig& model);

// Returns how the global batch is split over the replicas that have a rank, in their order. The readers of a replica
// are its tp groups with a rank. Without --reduced-batch the shares are equal. With a number, each reduced replica (one
// with an unused place) takes this many sequences, and the others share the rest equally. With auto, shares are in
// proportion to readers / work: `work` is that of the rank with most units, as a multiple of its work in a full group.
// `config`: resolved. Throws InputError for a --reduced-batch that does not leave the other replicas the rest.
data::BatchShape batch_shape(const TrainConfig& config, const TpUnits& units);

}  // namespace tessera::run
