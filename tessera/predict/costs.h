// Predicted durations of a Llama step's events on a machine: matrix products by flops and by bytes, whichever takes
// longer; everything else by bytes.
#pragma once
#include <string>
#include <vector>

#include "tessera/models/decoder_config.h"
#include "tessera/nn/recompute.h"
#include "tessera/predict/machine.h"
#include "tessera/predict/planned_parameters.h"
#include "tessera/schedule/simulate.h"

namespace tessera::predict {

struct CostInput {
  const models::DecoderConfig& model;
  const Machine& machine;
  MeshDegrees mesh;
  shard::ParameterTypes types;
  nn::BlockRecompute recompute;
  bool sequence_parallel = false;
  std::int64_t sequences = 1, seq_len = 1;  // of a microbatch
};

struct StepCosts {
  schedule::Costs costs;
  std::vector<std::string> work;  // by event: what the compute before it does; empty: nothing
};

// Of segments and the program's collectives. trace: nn::llama_trace of the model, of the last tp rank (which has the
// largest parts), or one that a run recorded. Errors: InputError for a machine without flops for the type.
StepCosts event_costs(const CostInput& input, const schedule::Trace& trace,
                      const std::vector<PlannedParameter>& parameters);
// Replaces those of the schedule's units and of publishes.
void set_unit_costs(const CostInput& input, const schedule::Trace& trace,
                    const std::vector<PlannedParameter>& parameters, const schedule::Schedule& schedule,
                    schedule::Costs& costs);

}  // namespace tessera::predict
