// Converts the flags of `tessera plan` to a request.
#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include "tessera/plan/measured.h"
#include "tessera/plan/step_plan.h"
#include "tessera/settings/settings.h"

namespace tessera::plan {

struct PlanCommandFlags {
  settings::SettingWords settings;
  std::string machine = "laptop";
  std::string measured;  // folder of a run to compare with; may be empty
  std::string events;    // file of a recorded trace to plan; may be empty
  bool evaluate = false;
  bool search = false;       // --search: list the meshes of --ranks
  bool may_propose = false;  // whether the command may choose the mesh if --ranks is above 1 and no degree is given
  settings::Use use = settings::Use::plan;
  std::optional<std::int64_t> layers;   // number of layers; absent: as in the model
  std::optional<double> expert_load;    // StepPlanRequest::expert_load; absent: 1
  std::optional<double> dead_share;     // share of the places that are dead; the places are drawn at random
  std::optional<double> memory_margin;  // StepPlanRequest::memory_margin; absent: its default
  std::optional<int> dead_seeds;        // number of draws, with the seeds 1, 2, ...; absent: 5
};

// Random draws of dead places. share: share of the places that are dead. seeds: number of draws.
struct DeadDraws {
  double share = 0;
  int seeds = 5;
};

struct PlanCommandInputs {
  StepPlanRequest request;
  std::optional<MeasuredRun> run = std::nullopt;
  std::optional<settings::TrainConfig> search = std::nullopt;  // set: pass it to search_meshes with the request
  bool has_unused = false;                                     // true: the mesh has unused places (continuations.h)
  std::optional<DeadDraws> draws;  // set: no place of the mesh is unused; the plan draws dead places at random
  bool propose = false;  // true: search, then plan the best mesh; --ranks is given without any degree of the mesh
  std::vector<std::string> warnings;  // about the model's config.json
};

// `configs` is the folder of models; its subfolder machines/ contains machine files. Throws InputError, which names the
// flag, for flags that contradict each other.
PlanCommandInputs plan_command_inputs(const PlanCommandFlags& flags, const std::filesystem::path& configs);

}  // namespace tessera::plan
