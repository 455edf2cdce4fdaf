// Converts the flags of `tessera plan` to a request.
#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include "tessera/run/config/settings.h"
#include "tessera/run/plan/measured.h"
#include "tessera/run/plan/step_plan.h"

namespace tessera::run {

struct PlanCommandFlags {
  SettingWords settings;
  std::string machine = "laptop";
  std::string measured;  // folder of a run, or empty
  std::string events;    // file of a recorded trace, or empty
  bool evaluate = false;
  bool search = false;                 // list the meshes of --ranks
  bool may_propose = false;            // several ranks without a degree of the mesh: choose the mesh
  std::optional<std::int64_t> layers;  // absent: those of the model
  std::optional<double> expert_load;   // StepPlanRequest::expert_load; absent: 1
  std::optional<double> dead_share;    // share of the places that are dead, at random
  std::optional<int> dead_seeds;       // number of draws, with the seeds 1, 2 ...; absent: 5
};

// Draws of dead places.
struct DeadDraws {
  double share = 0;
  int seeds = 5;
};

struct PlanCommandInputs {
  StepPlanRequest request;  // of a search: not resolved, as search_meshes expects
  std::optional<MeasuredRun> run;
  bool search = false;             // the request is for search_meshes
  bool has_unused = false;         // the request is for a mesh with unused places (failure_ways.h)
  std::optional<DeadDraws> draws;  // the request is for a mesh with all places, of which draws are dead
  bool propose = false;            // search, then plan the best mesh: --ranks is given, and no degree of the mesh
};

// `configs`: folder of models, with machines in machines/. Throws InputError, which names the flag, for flags that do
// not fit together.
PlanCommandInputs plan_command_inputs(const PlanCommandFlags& flags, const std::filesystem::path& configs);

}  // namespace tessera::run
