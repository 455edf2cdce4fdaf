// The options that decide the events and the arithmetic of a step, whether the step runs or not.
#pragma once
#include "tessera/models/model.h"
#include "tessera/nn/context.h"
#include "tessera/nn/mesh_degrees.h"
#include "tessera/runtime/runtime_options.h"
#include "tessera/shard/rank_layout.h"

namespace tessera::models {

struct StepOptions {
  BuildModel build;
  shard::RankLayout layout = nn::rank_layout({});
  shard::ParameterTypes types;
  bool sequence_parallel = false;
  nn::TokenSplit split;  // by tp rank: its share of the tokens under sequence parallelism
  nn::BlockRecompute recompute;
  runtime::RuntimeOptions runtime;
  nn::ProductOptions products;  // options of products in the number formats that runtime.products chooses
  nn::DropoutOptions dropout;
  std::uint64_t seed = 0;       // seed of dropout and of stochastic rounding, also of the optimizer's state
  double expert_bias_rate = 0;  // change of a router's bias in a step (train/update/router_bias.h)
  // On GPUs: the number of rows allocated for experts at first, divided by the number of rows of even loads. A step or
  // an evaluation that needs more rows is repeated with more memory. 0: memory for the rows of all possible choices.
  double expert_room = 0;
};

// Returns the context in which options.build makes a model. The context refers to `program` and `scales`, and to `room`
// if it is not null; these must outlive it.
nn::Context make_context(runtime::Program& program, const StepOptions& options, nn::DelayedScales& scales,
                         const nn::ExpertRoom* room);

}  // namespace tessera::models
