// The samples of one step on one rank.
#pragma once
#include <cstdint>
#include <functional>

#include "tessera/base/device.h"
#include "tessera/models/model.h"

namespace tessera::train {

// This rank's samples of a step.
struct StepInput {
  int microbatches = 1;                                // the same on every rank
  std::int64_t tokens = 0;                             // number of unmasked targets of the whole step, over all ranks
  std::function<models::Batch(int microbatch)> batch;  // returns this rank's block of a microbatch
};

// Returns the batch with the tensors that the device reads in the device's memory. The copies are enqueued.
models::Batch on_device(models::Batch batch, base::Device device);

}  // namespace tessera::train
