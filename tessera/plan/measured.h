// Compares the measurements of a run with the predictions of its plan.
#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "tessera/plan/continuations.h"
#include "tessera/plan/step_plan.h"
#include "tessera/telemetry/metric.h"

namespace tessera::plan {

// A run, read from the files in its folder.
struct MeasuredRun {
  settings::TrainConfig config;
  models::ModelConfigPtr model;
  std::int64_t steps = 0;  // number of measured steps, without the first steps (warm-up)
  // Medians over these steps. Bytes are medians over the steady steps: those whose weights the step before has
  // prefetched. Without a steady step, `is_steady` is false and all measured steps count.
  telemetry::StepMetrics medians;
  bool is_steady = true;
  std::int64_t departed_steps = 0;  // of the run; 0 if the run did not store the number
  // Bytes that training steps use on one rank. nullopt if the run did not store them, or if summary.json does not
  // describe the last steps of metrics.jsonl.
  std::optional<std::int64_t> gather_arena_bytes, reduce_arena_bytes, scratch_bytes, transfer_arena_bytes, matrix_bytes;
};

// Reads config.json, metrics.jsonl and, if it exists, summary.json. Throws InputError, which names the file, if the
// folder does not contain a run or the run has no steps.
MeasuredRun read_measured_run(const std::filesystem::path& folder);

// Returns {"run", "steps", "rows": [{"name", "predicted", "measured"}], "notes": [text]}. A note states why gathered
// bytes differ.
nlohmann::ordered_json comparison_json(const StepPlan& step, const MeasuredRun& run, const std::string& folder);
// Returns the comparison for a mesh with unused places. It has the same form, but no rows of bytes.
nlohmann::ordered_json comparison_json(const MeshStep& mesh, const MeasuredRun& run, const std::string& folder);
std::string comparison_text(const nlohmann::ordered_json& comparison);

}  // namespace tessera::plan
