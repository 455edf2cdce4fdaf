// The mesh of a run. All functions are pure.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/nn/mesh_degrees.h"
#include "tessera/settings/config.h"

namespace tessera::settings {

struct RunMesh {
  nn::MeshDegrees degrees;  // with the expert degrees if the model is known to have experts
  PlaceMap unused = {};     // slots of tp groups without a rank: dead, idle and spare slots
  std::int64_t ranks = 1;
  std::string text = {};  // such as "4 ranks (tp 2 x gtp 2 x dp 1)"
};

// Step 2 of resolve (resolve.h). Sets ranks and dp, so that tp * gtp * dp == ranks. Checks that global_batch is a
// multiple of micro_batch * gtp * dp. If places are unused (places.h), `ranks` is the number of active places, and
// global_batch may be any number. A launcher may then start a process for each active place or for each place.
TrainConfig resolve_ranks(TrainConfig config, std::optional<std::int64_t> world_size);
// Returns a number for each domain of nn::rank_layout: how many consecutive ranks add their gradients among themselves
// before the sum over all ranks. 1: all gradients are added in rank order.
std::vector<int> ranks_of_node(const TrainConfig& config, bool has_experts);
// Returns the mesh of settings whose dp is set.
RunMesh mesh_of(const MeshSettings& mesh, bool has_experts);

// Returns the flag that names the first unused places.
std::string_view unused_flag(const UnusedPlaces& unused);
// Returns the number of replicas of a mesh with unused places if --dp is not given. The result is the smallest number
// for which the mesh contains all places of --dead and --idle, and a place for each rank of --ranks.
std::int64_t nominal_replicas(const MeshSettings& mesh);

// Returns "1 process was started" or "3 processes were started".
std::string started_text(std::int64_t processes);
// Returns the command that starts this number of processes, such as " (mpirun -n 4 tessera train ...)". Returns "" for
// backends that start their own processes.
std::string start_text(Backend backend, std::int64_t ranks);
// Returns RunMesh::text of settings that have a number of ranks, such as stored settings.
std::string mesh_text(const MeshSettings& mesh, bool has_experts = false);
// Returns the names and sizes of the axes: tp, gtp, dp, and for a model with experts also etp, ep, egtp, edp.
std::vector<std::pair<std::string, int>> axes_of(const nn::MeshDegrees& degrees);

// The next functions are for settings before resolve. ResolvedRun has the same for a resolved run.

// Returns the degrees, with those of experts.
nn::MeshDegrees degrees_in(const MeshSettings& mesh);
// Returns the settings on a mesh without unused places. Settings that have no meaning on this mesh get their defaults.
TrainConfig on(TrainConfig config, const nn::MeshDegrees& degrees);
// Returns the settings for one rank, with one microbatch in a step.
TrainConfig alone(TrainConfig config);

}  // namespace tessera::settings
