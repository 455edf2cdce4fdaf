// The flags of `tessera plan` as what is to be planned.
#pragma once
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/run/plan/measured.h"
#include "tessera/run/plan/step_plan.h"

namespace tessera::run {

// Settings of a run (config/settings.h) that a plan depends on; each is a flag of the same name.
std::span<const std::string_view> plan_settings();

struct PlanFlags {
  std::map<std::string, std::vector<std::string>, std::less<>> settings;  // by name, as given
  std::string machine = "laptop";
  std::string measured;  // folder of a run; empty: none
  std::string events;    // file of a recorded trace; empty: none
  bool evaluate = false;
};

struct PlanTask {
  PlanRequest request;
  std::optional<MeasuredRun> run;
};

// configs: folder of models, and of machines in machines/. InputError, naming the flag, for what does not fit together.
PlanTask plan_task(const PlanFlags& flags, const std::filesystem::path& configs);

}  // namespace tessera::run
