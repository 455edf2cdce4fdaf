// Updates the biases of routers from the load of the experts after each step (docs/numerics.md, Experts).
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "tessera/base/memory/buffer.h"
#include "tessera/models/model.h"
#include "tessera/ops/optimizer/clip.h"
#include "tessera/ops/router/bias_update.h"
#include "tessera/runtime/runtime.h"

namespace tessera::train {

// Used by one thread. `runtime` must outlive the object.
class RouterBiasUpdate {
 public:
  // rate: the amount by which a bias changes in a step; 0: the biases do not change.
  RouterBiasUpdate(runtime::Runtime& runtime, models::RouterBiases biases, double rate);
  // Sums the counts of the step's microbatches over all ranks, updates the biases and publishes them. The biases do not
  // change if the weights are not updated in this step (`clip`). `losses` contains the loss and nn::RouterLoss::values
  // of each microbatch. `clip` is in the memory of the runtime's device. On a GPU, update() only enqueues work. Called
  // after the decision about the weight update. Collective over the world, unless the biases never change.
  void update(const std::vector<at::Tensor>& losses, const ops::Clip* clip);

 private:
  // Writes the counts that this rank adds to the sum over the world to counts_.
  void count_own(const std::vector<at::Tensor>& losses);
  std::vector<ops::RouterBiasPart> local_parts();

  runtime::Runtime& runtime_;
  models::RouterBiases biases_;
  double rate_;
  base::Buffer counts_;  // [routers, experts] int64, on the runtime's device
};

}  // namespace tessera::train
