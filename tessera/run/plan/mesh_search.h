// Searches for the fastest mesh of a number of ranks, for `tessera plan --search`.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/run/plan/step_plan.h"

namespace tessera::run {

// Compute's time in a step by cause, in seconds. The sum is the predicted step.
struct StepSeconds {
  double compute = 0;                                  // operators
  double gathers = 0, gradients = 0, activations = 0;  // compute waits for weights, gradients, collectives
  double slowest = 0;                                  // the mean rank waits for the slowest
  double total() const { return compute + gathers + gradients + activations + slowest; }
};
StepSeconds seconds_of(const StepPlan& step);
// Adds `times` times what the longer step takes beyond the shorter one.
void add_microbatches(const StepSeconds& shorter, double times, StepSeconds& longer);

// A mesh with its predicted step.
struct MeshPlan {
  TrainConfig config;  // resolved
  StepSeconds seconds;
  MemoryUse memory;
  bool fits = true;  // false: a rank needs more than the memory of the machine's processor, if the machine states it
};

// Steps with more microbatches are predicted from steps of this number and one fewer: microbatches in the middle of a
// step take equally long.
inline constexpr std::int64_t kPlannedMicrobatches = 4;

// Predicts a step as plan_step does. A step with many microbatches takes no longer to predict than one with few.
MeshPlan plan_mesh(const StepPlanRequest& request);

// Plans every mesh of `request.config.ranks` ranks and returns them, best first: meshes that fit, then the others, each
// by step time. `request.config` is not resolved, except for its global batch and its number of ranks. A degree that
// the config gives (TrainConfig::given) is kept. tp is at most the number of ranks of a node. Experts have edp 1, and
// the layout with the shortest predicted layer. If `recompute` is not given, the search chooses the fastest policy
// that fits. If `sequence_parallel` is not given, it is on if tp is above 1. The plans run on `threads`
// threads; the result does not depend on their number. Throws InputError if no mesh is possible, and the errors of
// plan_step.
std::vector<MeshPlan> search_meshes(const StepPlanRequest& request, int threads);

// Returns one sentence: why the first mesh is better than the second. Not empty.
std::string reason_for(const std::vector<MeshPlan>& meshes);

// Returns "tp 2 x gtp 4 x dp 1", with the degrees of experts if the model has experts.
std::string degrees_text(const TrainConfig& config);
// Returns the flags of the mesh and of the settings that the search chose, such as "--tp 2 --gtp 4 --dp 1 ...".
std::string flags_text(const TrainConfig& config);

}  // namespace tessera::run
