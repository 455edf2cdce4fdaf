// The same run on another mesh. Only these functions change the mesh of a resolved run. Pure.
#pragma once
#include <cstdint>
#include <string>

#include "tessera/settings/config.h"

namespace tessera::settings {

// Degrees of a mesh (nn::MeshDegrees, nn::ExpertDegrees).
struct Degrees {
  std::int64_t tp = 1, gtp = 1, dp = 1;
  std::int64_t etp = 1, ep = 1, egtp = 1;
};
// Returns the degrees of a resolved run.
Degrees degrees_in(const TrainConfig& config);
// Returns the run on a mesh without unused places. Settings that have no meaning on this mesh get their defaults.
TrainConfig on(TrainConfig config, const Degrees& degrees);
// Returns the run on one rank, with one microbatch in a step.
TrainConfig alone(TrainConfig config);
// Returns the run with the degrees tp, gtp and dp, the unused places and the number of ranks of `other`.
TrainConfig on_mesh_of(TrainConfig config, const TrainConfig& other);

// The settings of unused places (TrainConfig).
struct UnusedPlaces {
  PlaceMap dead, idle;
  std::string tp_spares, reduced_batch;
};
// Returns the run on its mesh with these unused places. Throws the errors of inactive_slots.
TrainConfig without(TrainConfig config, UnusedPlaces unused);

// Returns the run with this number of microbatches of each rank in a step. No place may be unused.
TrainConfig with_microbatches(TrainConfig config, std::int64_t microbatches);

}  // namespace tessera::settings
