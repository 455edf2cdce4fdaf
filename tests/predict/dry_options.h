// Options of dry steps for tests: dense weights, one rank.
#pragma once
#include <memory>

#include "tessera/models/model_config.h"
#include "tessera/nn/dense_mesh.h"
#include "tessera/predict/dry_step.h"
#include "tessera/predict/planned_parameters.h"

namespace tessera::predict {

// Returns the options of a step whose microbatch has one token.
inline DryOptions dense_options(const models::ModelConfigPtr& model, const shard::ParameterTypes& types,
                                const MeshDegrees& mesh) {
  return {.model = [model](nn::Context& context) { return model->build(context, {.max_positions = 1}); },
          .mesh = nn::dense_mesh(mesh.tp, mesh.gtp, mesh.dp),
          .domains = {nn::dense_domain()},
          .rank = mesh.tp - 1,
          .types = types,
          .runtime = {.zero = mesh.zero, .node = mesh.node}};
}

inline std::vector<PlannedParameter> planned_of(const DryStep& step, const shard::ParameterTypes& types,
                                                const MeshDegrees& mesh) {
  return planned_parameters(step.parameters, step.backward_weights, types, mesh);
}

}  // namespace tessera::predict
