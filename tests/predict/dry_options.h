// Options of dry steps of a dense model on one rank, for tests.
#pragma once
#include <memory>

#include "tessera/models/model_config.h"
#include "tessera/nn/mesh_degrees.h"
#include "tessera/predict/dry_step.h"
#include "tessera/predict/planned_parameters.h"

namespace tessera::predict {

// Returns the options of a step whose microbatch has one token.
inline DryOptions dense_options(const models::ModelConfigPtr& model, const shard::ParameterTypes& types,
                                const nn::MeshDegrees& mesh) {
  return {.step = {.build = [model](const nn::Context& context) { return model->build(context, {.max_positions = 1}); },
                   .layout = nn::rank_layout(mesh),
                   .types = types},
          .rank = mesh.tp - 1};
}

}  // namespace tessera::predict
