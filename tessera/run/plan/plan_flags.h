// The flags of `tessera plan` as what is to be planned.
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
  std::string measured;  // folder of a run; empty: none
  std::string events;    // file of a recorded trace; empty: none
  bool evaluate = false;
};

struct PlanCommandInputs {
  StepPlanRequest request;
  std::optional<MeasuredRun> run;
};

// configs: folder of models, and of machines in machines/. InputError, naming the flag, for what does not fit together.
PlanCommandInputs plan_command_inputs(const PlanCommandFlags& flags, const std::filesystem::path& configs);

}  // namespace tessera::run
