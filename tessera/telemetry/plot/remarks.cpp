#include "tessera/telemetry/plot/remarks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>

namespace tessera::telemetry {
namespace {

constexpr std::size_t kWindow = 32, kFewest = 8, kMaxListed = 5;
constexpr double kDeviations = 6, kMinShare = 0.02, kDeviationOfMedian = 1.4826;

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double deviation(const std::deque<double>& window, double center) {
  std::vector<double> distances;
  for (const double loss : window) distances.push_back(std::abs(loss - center));
  return kDeviationOfMedian * median(std::move(distances));
}

// Returns a loss with 4 digits behind the point, or with 5 digits if it is very large or very small.
std::string loss_text(double loss) {
  const double size = std::abs(loss);
  return loss != 0 && (size < 1e-3 || size >= 1e7) ? fmt::format("{:.5g}", loss) : fmt::format("{:.4f}", loss);
}

std::string steps_text(std::int64_t first, std::int64_t last) {
  return first == last ? fmt::format("step {}", first) : fmt::format("steps {} to {}", first, last);
}

std::string summary_of(const PlottedRun& run) {
  const StepMetrics& last = run.steps.back();
  std::string text = fmt::format("{}, loss {}", steps_text(run.steps.front().step, last.step), loss_text(last.loss));
  const StepMetrics* lowest = nullptr;
  LossBySet valid;
  for (const StepMetrics& step : run.evaluations)
    for (const auto& [name, loss] : step.valid_losses) valid[name] = loss;
  for (const StepMetrics& step : run.steps) {
    if (std::isfinite(step.loss) && (lowest == nullptr || step.loss < lowest->loss)) lowest = &step;
    for (const auto& [name, loss] : step.valid_losses) valid[name] = loss;
  }
  if (lowest != nullptr) text += fmt::format(", lowest {} at step {}", loss_text(lowest->loss), lowest->step);
  for (const auto& [name, loss] : valid)
    text += fmt::format(", held-out loss{}{} {}", name.empty() ? "" : " of ", name, loss_text(loss));
  return text;
}

void add_spikes(const PlottedRun& run, std::vector<std::string>& lines) {
  std::vector<LossSpike> spikes = find_spikes(run.steps);
  std::ranges::stable_sort(
      spikes, [](const LossSpike& a, const LossSpike& b) { return a.loss / a.median > b.loss / b.median; });
  for (std::size_t i = 0; i < std::min(spikes.size(), kMaxListed); ++i)
    lines.push_back(fmt::format("loss spike at {}: {}, median before it {}",
                                steps_text(spikes[i].first, spikes[i].last), loss_text(spikes[i].loss),
                                loss_text(spikes[i].median)));
  if (spikes.size() > kMaxListed) lines.push_back(fmt::format("{} more loss spikes", spikes.size() - kMaxListed));
}

// Counts the steps for which `is_counted` holds, and names the first of them.
template <typename IsCounted>
void add_count(const PlottedRun& run, const std::string& what, IsCounted is_counted, std::vector<std::string>& lines) {
  const auto first = std::ranges::find_if(run.steps, is_counted);
  if (first == run.steps.end()) return;
  lines.push_back(
      fmt::format("{} {}, first in step {}", std::ranges::count_if(run.steps, is_counted), what, first->step));
}

void add_slowest_rank(const PlottedRun& run, std::vector<std::string>& lines) {
  std::map<int, std::int64_t> steps;
  std::int64_t measured = 0;
  for (const StepMetrics& step : run.steps) {
    if (!step.slowest_rank || !step.slowest_rank_wait_ms) continue;
    ++measured;
    ++steps[*step.slowest_rank];
  }
  if (measured == 0) return;
  const auto most = std::ranges::max_element(steps, {}, [](const auto& entry) { return entry.second; });
  double less = 0;
  for (const StepMetrics& step : run.steps)
    if (step.slowest_rank == most->first && step.slowest_rank_wait_ms)
      less += step.exposed_comm_ms - *step.slowest_rank_wait_ms;
  lines.push_back(fmt::format(
      "slowest rank: {}, in {} of {} measured steps; in these it waited {:.3g} ms less than the mean of the ranks",
      most->first, most->second, measured, less / static_cast<double>(most->second)));
}

}  // namespace

std::vector<LossSpike> find_spikes(std::span<const StepMetrics> steps) {
  std::vector<LossSpike> spikes;
  std::deque<double> window;
  bool is_open = false;  // whether the previous step belongs to the newest spike
  for (const StepMetrics& step : steps) {
    if (!std::isfinite(step.loss)) {
      is_open = false;
      continue;
    }
    const double typical = window.empty() ? step.loss : median({window.begin(), window.end()});
    const double excess = step.loss - typical;
    const bool is_spike = window.size() >= kFewest && excess > kMinShare * std::abs(typical) &&
                          excess > kDeviations * deviation(window, typical);
    if (is_spike && is_open) {
      spikes.back().last = step.step;
      spikes.back().loss = std::max(spikes.back().loss, step.loss);
    } else if (is_spike) {
      spikes.push_back({.first = step.step, .last = step.step, .loss = step.loss, .median = typical});
    }
    is_open = is_spike;
    if (is_spike) continue;
    window.push_back(step.loss);
    if (window.size() > kWindow) window.pop_front();
  }
  return spikes;
}

std::vector<std::string> remarks_of(const PlottedRun& run, LossAxis axis) {
  if (run.steps.empty()) return {"no step has finished"};
  std::vector<std::string> lines{summary_of(run)};
  add_spikes(run, lines);
  add_count(
      run, "steps had no target, so they have no loss", [](const StepMetrics& step) { return step.tokens == 0; },
      lines);
  add_count(
      run, "losses are not finite",
      [](const StepMetrics& step) { return step.tokens > 0 && !std::isfinite(step.loss); }, lines);
  if (axis == LossAxis::logarithmic)
    add_count(
        run, "losses are not above 0 and have no place on a logarithmic axis",
        [](const StepMetrics& step) { return std::isfinite(step.loss) && step.loss <= 0; }, lines);
  add_count(
      run, "steps were skipped: their gradient was not finite", [](const StepMetrics& step) { return step.skipped; },
      lines);
  add_count(
      run, "steps were suppressed and repeated", [](const StepMetrics& step) { return step.suppressed > 0; }, lines);
  add_slowest_rank(run, lines);
  if (run.is_cut_short) lines.emplace_back("the last line of metrics.jsonl is incomplete and was left out");
  return lines;
}

}  // namespace tessera::telemetry
