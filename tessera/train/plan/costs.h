// Predicted durations of a Llama step's events on a machine: matrix products by flops and by bytes, whichever takes
// longer; everything else by bytes.
#pragma once
#include <string>
#include <vector>

#include "tessera/nn/recompute.h"
#include "tessera/shard/simulate.h"
#include "tessera/train/plan/machine.h"
#include "tessera/train/plan/sizes.h"

namespace tessera::train {

struct CostInput {
  const nn::LlamaConfig& model;
  const Machine& machine;
  MeshDegrees mesh;
  shard::ParameterTypes types;
  nn::BlockRecompute recompute;
  bool sequence_parallel = false;
  std::int64_t sequences = 1, seq_len = 1;  // of a microbatch
};

struct StepCosts {
  shard::Costs costs;
  std::vector<std::string> work;  // by event: what the compute before it does; empty: nothing
};

// Of segments and the program's collectives. trace: nn::llama_trace of the model, of the last tp rank (which has the
// largest parts), or one that a run recorded. Errors: InputError for a machine without flops for the type.
StepCosts event_costs(const CostInput& input, const shard::Trace& trace,
                      const std::vector<PlannedParameter>& parameters);
// Replaces those of the schedule's units and of publishes.
void set_unit_costs(const CostInput& input, const shard::Trace& trace, const std::vector<PlannedParameter>& parameters,
                    const shard::Schedule& schedule, shard::Costs& costs);

}  // namespace tessera::train
