#include "tessera/plan/measured.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "tessera/base/error.h"
#include "tessera/base/json_file.h"
#include "tessera/hub/run_directory.h"
#include "tessera/models/registry.h"
#include "tessera/settings/resume.h"
#include "tessera/settings/text/parse.h"
#include "tessera/telemetry/metric_summary.h"
#include "tessera/telemetry/metrics.h"

namespace tessera::plan {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::size_t kWarmUp = 3;  // number of first steps, which record and allocate

// Returns the metrics of the steps from `first_step` on.
std::vector<telemetry::StepMetrics> read_metrics(const std::filesystem::path& path, std::int64_t first_step) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw InputError("{}: cannot be read, expected the metrics of a run", path.string());
  std::vector<telemetry::StepMetrics> steps;
  std::string line;
  while (std::getline(file, line))
    if (!file.eof())  // an incomplete line is skipped, because the run may be writing it
      steps.push_back(telemetry::parse_metrics_line(line, fmt::format("{}:{}", path.string(), steps.size() + 1)));
  std::erase_if(steps,
                [&](const telemetry::StepMetrics& metrics) { return !metrics.trained || metrics.step < first_step; });
  if (steps.empty() && first_step > 1)
    throw InputError("{}: holds no step from {} on, expected at least one since the run was resumed", path.string(),
                     first_step);
  if (steps.empty()) throw InputError("{}: holds no step, expected at least one", path.string());
  return steps;
}

// Returns the steps without the first kWarmUp, but at least the last step.
std::vector<telemetry::StepMetrics> without_warm_up(std::vector<telemetry::StepMetrics> steps) {
  steps.erase(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(std::min(kWarmUp, steps.size() - 1)));
  return steps;
}

// Returns the steps after the warm-up whose weights the step before has prefetched. An evaluation drops the prefetched
// weights, and so does an update that is suppressed or skipped.
std::vector<telemetry::StepMetrics> steady_steps(const std::vector<telemetry::StepMetrics>& steps) {
  const auto updates = [](const telemetry::StepMetrics& step) { return step.suppressed == 0 && !step.skipped; };
  std::vector<telemetry::StepMetrics> steady;
  for (std::size_t i = kWarmUp; i < steps.size(); ++i)
    if (updates(steps[i]) && updates(steps[i - 1]) && steps[i - 1].valid_losses.empty()) steady.push_back(steps[i]);
  return steady;
}

// Returns a member that is an integer from 0 to 2^62, so that the sum of two fits.
std::optional<std::int64_t> integer_in(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number_unsigned()) return std::nullopt;
  const auto value = found->get<std::uint64_t>();
  return value <= std::uint64_t{1} << 62 ? std::optional(static_cast<std::int64_t>(value)) : std::nullopt;
}

// Reads the arenas of training steps. Runs of older programs stored only the arenas of all steps.
void read_summary(const json& summary, const std::vector<telemetry::StepMetrics>& steps, MeasuredRun& run) {
  // The summary of an earlier part of a run remains until the resumed run ends.
  const bool is_of_these_steps = integer_in(summary, "step") == steps.back().step &&
                                 integer_in(summary, "trained_steps") == static_cast<std::int64_t>(steps.size());
  if (!is_of_these_steps) return;
  run.departed_steps = integer_in(summary, "departed_steps").value_or(0);
  run.transfer_arena_bytes = integer_in(summary, "transfer_arena_bytes");
  run.matrix_bytes = integer_in(summary, "matrix_bytes");
  if (const auto arenas = summary.find("train_arenas"); arenas != summary.end() && arenas->is_object()) {
    run.gather_arena_bytes = integer_in(*arenas, "gather_bytes");
    run.reduce_arena_bytes = integer_in(*arenas, "reduce_bytes");
    run.scratch_bytes = integer_in(*arenas, "scratch_bytes");
    return;
  }
  run.gather_arena_bytes = integer_in(summary, "gather_arena_bytes");
  run.reduce_arena_bytes = integer_in(summary, "reduce_arena_bytes");
  run.scratch_bytes = integer_in(summary, "exchange_scratch_bytes");
}

// Returns why the gathered bytes of the plan and of the run differ.
std::string reason_of_gathers(const StepPlan& step, const MeasuredRun& run) {
  if (!run.is_steady)
    return fmt::format(
        "no measured step is steady: the first {} steps make the schedule, and a step after an evaluation or after a "
        "suppressed or skipped step gathers the prefetched weights again",
        kWarmUp);
  if (!run.gather_arena_bytes)
    return "summary.json is missing or does not describe the last steps, so the plan chose automatic budgets from "
           "predicted times, and the run from measured times";
  if (run.departed_steps > 0) return fmt::format("{} steps departed from their schedule", run.departed_steps);
  if (*run.gather_arena_bytes != step.schedule.gather_arena)
    return "the plan and the run have arenas of different sizes for gathered weights";
  return "the arenas are equal, so the run may be of another version of the program, which gathers other weights";
}

void add_row(ordered_json& rows, const char* name, const json& predicted, const json& measured) {
  rows.push_back({{"name", name}, {"predicted", predicted}, {"measured", measured}});
}

}  // namespace

MeasuredRun read_measured_run(const std::filesystem::path& folder) {
  const hub::RunDirectory directory(folder);
  const std::string where = directory.config().string();
  if (std::error_code code; !std::filesystem::exists(directory.config(), code))
    throw InputError("--measured: '{}' holds no run, expected the folder that train --out made", folder.string());
  const json stored = base::read_json_file(directory.config());
  if (!stored.is_object() || !stored.contains("config") || !stored.contains("model"))
    throw InputError("{}: expected the settings of a run, with keys 'config' and 'model'", where);
  MeasuredRun run;
  settings::apply_json(run.config, stored["config"], where);
  settings::complete_earlier_run(run.config);
  run.config.given = {"global_batch"};  // the file holds every setting, whether a user gave it or not
  run.model = models::parse_model_config(stored["model"], where);
  const std::vector<telemetry::StepMetrics> all =
      read_metrics(directory.metrics(), integer_in(stored, "first_step").value_or(1));
  const std::vector<telemetry::StepMetrics> steps = without_warm_up(all), steady = steady_steps(all);
  run.steps = static_cast<std::int64_t>(steps.size());
  run.medians = telemetry::medians_of(steps);
  run.is_steady = !steady.empty();
  if (run.is_steady) {
    const telemetry::StepMetrics medians = telemetry::medians_of(steady);
    run.medians.gathered_bytes = medians.gathered_bytes;
    run.medians.reduced_bytes = medians.reduced_bytes;
  }
  std::error_code ignored;
  if (std::filesystem::exists(directory.summary(), ignored))
    read_summary(base::read_json_file(directory.summary()), all, run);
  return run;
}

ordered_json comparison_json(const MeshStep& mesh, const MeasuredRun& run, const std::string& folder) {
  const StepSeconds& slowest = mesh.slowest().step.seconds;
  ordered_json rows = ordered_json::array();
  add_row(rows, "step_ms", slowest.total() * 1e3, run.medians.step_ms);
  add_row(rows, "exposed_comm_ms", (slowest.total() - slowest.compute) * 1e3, run.medians.exposed_comm_ms);
  return {{"run", folder}, {"steps", run.steps}, {"rows", std::move(rows)}, {"notes", ordered_json::array()}};
}

ordered_json comparison_json(const StepPlan& step, const MeasuredRun& run, const std::string& folder) {
  ordered_json rows = ordered_json::array();
  add_row(rows, "step_ms", step.prediction.step_seconds * 1e3, run.medians.step_ms);
  add_row(rows, "exposed_comm_ms", step.prediction.exposed_seconds() * 1e3, run.medians.exposed_comm_ms);
  if (run.medians.exposed_tp_ms)
    add_row(rows, "exposed_tp_ms", step.activations_seconds() * 1e3, *run.medians.exposed_tp_ms);
  add_row(rows, "gathered_bytes", step.all_ranks.gathered, run.medians.gathered_bytes);
  add_row(rows, "reduced_bytes", step.all_ranks.reduced, run.medians.reduced_bytes);
  if (run.gather_arena_bytes) add_row(rows, "gather_arena_bytes", step.schedule.gather_arena, *run.gather_arena_bytes);
  if (run.reduce_arena_bytes) add_row(rows, "reduce_arena_bytes", step.schedule.reduce_arena, *run.reduce_arena_bytes);
  if (run.transfer_arena_bytes.value_or(0) > 0)
    add_row(rows, "transfer_arena_bytes", step.memory.transfers, *run.transfer_arena_bytes);
  if (run.matrix_bytes) add_row(rows, "matrix_bytes", step.memory.matrices, *run.matrix_bytes);
  ordered_json notes = ordered_json::array();
  if (step.all_ranks.gathered != run.medians.gathered_bytes)
    notes.push_back("gathered_bytes differ: " + reason_of_gathers(step, run));
  return {{"run", folder}, {"steps", run.steps}, {"rows", std::move(rows)}, {"notes", std::move(notes)}};
}

std::string comparison_text(const ordered_json& comparison) {
  std::string text = fmt::format("\n{}: medians of {} steps; bytes of all ranks\n{:<20} {:>18} {:>18} {:>9}\n",
                                 comparison["run"].get<std::string>(), comparison["steps"].get<std::int64_t>(), "",
                                 "predicted", "measured", "ratio");
  for (const auto& row : comparison["rows"]) {
    const auto predicted = row["predicted"].get<double>(), measured = row["measured"].get<double>();
    const int digits = row["measured"].is_number_integer() ? 0 : 3;
    const bool known = !std::isnan(measured);
    const std::string ratio = known && measured != 0 ? fmt::format("{:.3f}", predicted / measured) : "-";
    text += fmt::format("{:<20} {:>18.{}f} {:>18} {:>9}\n", row["name"].get<std::string>(), predicted, digits,
                        known ? fmt::format("{:.{}f}", measured, digits) : "-", ratio);
  }
  for (const auto& note : comparison["notes"]) text += note.get<std::string>() + "\n";
  return text;
}

}  // namespace tessera::plan
