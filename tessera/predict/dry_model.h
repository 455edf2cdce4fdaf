// A model whose module runs without memory: its forward and backward passes on tensors that have shapes alone, against
// any program that takes the calls.
#pragma once
#include <memory>
#include <vector>

#include "tessera/models/model.h"
#include "tessera/nn/context.h"
#include "tessera/predict/dry_step.h"

namespace tessera::predict {

// One thread. `program` gives no memory (kNoDevice) and outlives this.
class DryModel {
 public:
  // Registers the model's parameters.
  DryModel(runtime::Program& program, const DryOptions& options);

  // Between begin_step and end_step, the whole of one. trains: with its backward pass.
  void microbatch(bool trains);
  // After end_step, the optimizer's events: the messages of amaxes and the publishes of an update (train/optimizer.h).
  // trace: of the step. backward_weights: by weight, as DryStep has them.
  void update(const schedule::Trace& trace, const std::vector<schedule::ParameterId>& backward_weights);

 private:
  runtime::Program& program_;
  nn::DelayedScales scales_;
  nn::Context context_;
  std::unique_ptr<models::Model> model_;
  std::int64_t sequences_, seq_len_;
};

}  // namespace tessera::predict
