// The biases of routers, which follow the load of the experts after each step (docs/numerics.md, Experts).
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "tessera/models/model.h"
#include "tessera/ops/optimizer/adamw.h"
#include "tessera/runtime/runtime.h"

namespace tessera::train {

// Used by one thread. `runtime` must outlive the object.
class RouterBiasUpdate {
 public:
  // rate: the amount by which a bias changes in a step; 0: the biases stay. Throws InputError on GPUs if biases change.
  RouterBiasUpdate(runtime::Runtime& runtime, models::RouterBiases biases, double rate);
  // Adds the counts of a step's microbatches over all ranks, updates the biases and publishes them. If the update of
  // the step does not apply, the biases stay. losses: for each microbatch the loss and nn::RouterLoss::values. Called
  // after the decision about the update. Collective over the world if biases change.
  void update(const std::vector<at::Tensor>& losses, const ops::Clip* clip);

 private:
  std::vector<std::int64_t> counts_of(const std::vector<at::Tensor>& losses) const;

  runtime::Runtime& runtime_;
  models::RouterBiases biases_;
  double rate_;
};

}  // namespace tessera::train
