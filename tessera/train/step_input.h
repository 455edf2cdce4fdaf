// The samples of one step on one rank.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "tessera/base/device.h"
#include "tessera/models/model.h"

namespace tessera::train {

// This rank's samples of a step.
struct StepInput {
  int microbatches = 1;  // the same on every rank of a replica
  // By replica: the microbatches of each of its ranks, on every rank the same list. Empty: every replica has the same
  // number of blocks, microbatches times the ranks of the replica that read samples.
  std::vector<int> microbatches_by_replica = {};
  std::int64_t tokens = 0;                             // number of unmasked targets of the whole step, over all ranks
  std::function<models::Batch(int microbatch)> batch;  // returns this rank's block of a microbatch
  // The number of the step in the run, from 1. Only dropout uses it. A step that runs again has the same number.
  std::int64_t step = 1;
};

// Returns the batch with the tensors that the device reads in the device's memory. The copies are enqueued.
models::Batch on_device(models::Batch batch, base::Device device);

}  // namespace tessera::train
