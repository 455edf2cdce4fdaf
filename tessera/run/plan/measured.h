// What a run measured, beside what its plan predicts.
#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "tessera/run/plan/step_plan.h"

namespace tessera::run {

// A run as its folder tells it.
struct MeasuredRun {
  TrainConfig config;
  models::ModelConfigPtr model;
  std::int64_t steps = 0;  // that the medians are over: the first ones, in which it warms up, count nothing
  // Medians of steps; bytes of all ranks.
  double step_ms = 0, exposed_comm_ms = 0;
  std::int64_t gathered_bytes = 0, reduced_bytes = 0;
  std::optional<std::int64_t> gather_arena_bytes, reduce_arena_bytes, scratch_bytes;  // of a rank; if it says so
};

// From config.json, metrics.jsonl and, where it is there, summary.json. InputError naming the file: no run, no steps.
MeasuredRun read_measured_run(const std::filesystem::path& folder);

// {"run", "steps", "rows": [{"name", "predicted", "measured"}]}.
nlohmann::ordered_json comparison_json(const StepPlan& step, const MeasuredRun& run, const std::string& folder);
std::string comparison_text(const nlohmann::ordered_json& comparison);

}  // namespace tessera::run
