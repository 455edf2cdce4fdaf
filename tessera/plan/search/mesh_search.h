// Searches for the fastest mesh for a given number of ranks, for `tessera plan --search`.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/plan/step_plan.h"

namespace tessera::plan {

// The time of compute in a step by cause, in seconds. The total is the predicted time of the step.
struct StepSeconds {
  double compute = 0;  // time of the operators
  // Times that compute waits for gathers of weights, for reductions of gradients, and for the program's collectives.
  double gathers = 0, gradients = 0, activations = 0;
  double slowest = 0;  // average time that ranks wait for the slowest rank
  double total() const { return compute + gathers + gradients + activations + slowest; }
};
StepSeconds seconds_of(const StepPlan& step);
// Adds `times` times the difference between `longer` and `shorter` to `longer`.
void add_microbatches(const StepSeconds& shorter, double times, StepSeconds& longer);

// A mesh and its predicted step.
struct MeshPlan {
  settings::ResolvedRun run;
  StepSeconds seconds;
  MemoryUse memory;
  std::int64_t missing = 0;  // bytes that a rank lacks (missing_bytes)

  bool fits() const { return missing == 0; }
};

// A step with more microbatches than this is predicted from two shorter steps: one with this number of microbatches,
// and one with one microbatch fewer. All microbatches in the middle of a step take equally long.
inline constexpr std::int64_t kPlannedMicrobatches = 4;

// Predicts a step as plan_step does. The prediction of a step with many microbatches takes no longer than that of a
// step with kPlannedMicrobatches.
MeshPlan plan_mesh(const StepPlanRequest& request);

// Plans every mesh of `asked.mesh.ranks` ranks and returns the plans, best first. Meshes that fit are first, ordered by
// step time. Meshes that do not fit are ordered by their missing bytes. `asked` has a global batch and a number of
// ranks. Each mesh is planned as `request`, with `asked` in place of the settings of its run. The search keeps degrees
// that the user gave (TrainConfig::given). tp is at most the number of ranks of a node. Experts have edp 1, and the
// degrees with the shortest predicted time of a layer. If `recompute` is not given, the search chooses the fastest
// policy that fits, or the policy with the fewest missing bytes if none fits. If `sequence_parallel` is not given, it
// is on for tp above 1. `threads` threads compute the plans; the result does not depend on their number. After each
// mesh, one thread at a time calls `progress` with the number of planned meshes and of all meshes. Throws InputError if
// no mesh is possible, and the errors of plan_step.
using SearchProgress = std::function<void(std::size_t planned, std::size_t all)>;
std::vector<MeshPlan> search_meshes(const StepPlanRequest& request, const settings::TrainConfig& asked, int threads,
                                    const SearchProgress& progress = {});

// Returns one sentence that explains why the first mesh is better than the second. If no mesh fits, returns the bytes
// that the first mesh lacks. `meshes` must not be empty.
std::string reason_for(const std::vector<MeshPlan>& meshes);

// Returns a text like "tp 2 x gtp 4 x dp 1". For a model with experts, the text also contains etp, ep, egtp and edp.
std::string degrees_text(const nn::MeshDegrees& degrees);
// Returns the flags of the mesh, the global batch, and the settings that the search chose, such as "--tp 2 --gtp 4 --dp
// 1 --global-batch 8 ...". With these flags in place of --ranks, `tessera plan` plans the same step.
std::string flags_text(const settings::ResolvedRun& run);

}  // namespace tessera::plan
