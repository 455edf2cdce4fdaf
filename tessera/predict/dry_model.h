// A model that runs without memory. Its forward and backward passes use tensors that have shapes but no data. The
// passes can call any Program.
#pragma once
#include <memory>

#include "tessera/predict/dry_step.h"
#include "tessera/runtime/update_calls.h"

namespace tessera::predict {

// Used by one thread. `program` has the device kNoDevice and outlives the object.
class DryModel {
 public:
  // Registers the model's parameters.
  DryModel(runtime::Program& program, const DryOptions& options);

  // Runs microbatch `number`: the forward pass, and the backward pass if `trains` is true. Call this function between
  // begin_step and end_step.
  void microbatch(int number, bool trains);
  runtime::UpdateParts update_parts();  // argument of dry_update, which follows a step

 private:
  runtime::Program& program_;
  nn::DelayedScales scales_;
  std::int64_t step_ = 1;  // number of the step; no kernel of a dry run reads the number
  nn::ExpertRoom room_;
  nn::Context context_;
  std::unique_ptr<models::Model> model_;
  std::int64_t sequences_, seq_len_;
  bool moves_biases_;
};

}  // namespace tessera::predict
