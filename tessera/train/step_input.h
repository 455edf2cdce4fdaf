// The samples of one step on one rank.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "tessera/base/device.h"
#include "tessera/models/model.h"

namespace tessera::train {

// The samples of a step on this rank.
struct StepInput {
  int microbatches = 1;  // number of this rank's microbatches, equal on every rank of a replica
  // By replica: the number of microbatches of each of its ranks. The list is equal on every rank. Empty: all replicas
  // have the same number of blocks, so a rank's number of microbatches is that number divided by the number of its
  // replica's readers.
  std::vector<int> microbatches_by_replica = {};
  std::int64_t tokens = 0;                             // number of unmasked targets of the step over all ranks
  std::function<models::Batch(int microbatch)> batch;  // returns this rank's block for a microbatch
  // The number of the step in the run, starting at 1. Dropout and stochastic rounding use this number. A repeated step
  // has the same number.
  std::int64_t step = 1;
};

// Returns a copy of the batch whose tensors are in the device's memory. Only tensors that the device reads are copied.
// The copies are enqueued.
models::Batch on_device(models::Batch batch, base::Device device);

}  // namespace tessera::train
