// Settings on another mesh. ResolvedRun (resolved_run.h) has the same for a resolved run. Pure.
#pragma once
#include "tessera/nn/mesh_degrees.h"
#include "tessera/settings/config.h"

namespace tessera::settings {

// Returns the degrees, with those of experts.
nn::MeshDegrees degrees_in(const TrainConfig& config);
// Returns the settings on a mesh without unused places. Settings that have no meaning on this mesh get their defaults.
TrainConfig on(TrainConfig config, const nn::MeshDegrees& degrees);
// Returns the settings for one rank, with one microbatch in a step.
TrainConfig alone(TrainConfig config);
// Returns the settings with the degrees tp, gtp and dp, the unused places and the number of ranks of `other`.
TrainConfig on_mesh_of(TrainConfig config, const TrainConfig& other);

}  // namespace tessera::settings
