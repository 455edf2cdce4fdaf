#include "tessera/telemetry/plot/panel.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tessera::telemetry {
namespace {

using Limits = std::numeric_limits<double>;

// The difference of any two steps fits an unsigned integer.
double distance(std::int64_t from, std::int64_t to) {
  return static_cast<double>(static_cast<std::uint64_t>(to) - static_cast<std::uint64_t>(from));
}

// Returns a range around one value.
ValueRange around(double value, bool is_log) {
  if (is_log)
    return {
        .low = std::max(value / 2, Limits::denorm_min()), .high = std::min(value * 2, Limits::max()), .is_log = true};
  const double margin = value == 0 ? 1 : std::max(std::abs(value) / 10, Limits::min());
  return {.low = std::max(value - margin, Limits::lowest()), .high = std::min(value + margin, Limits::max())};
}

}  // namespace

double StepRange::position(std::int64_t step) const {
  return first == last ? 0.5 : distance(first, step) / distance(first, last);
}

bool ValueRange::shows(double value) const {
  return std::isfinite(value) && (!is_log || value > 0);
}

double ValueRange::position(double value) const {
  if (is_log) return (std::log(value) - std::log(low)) / (std::log(high) - std::log(low));
  if (std::isfinite(high - low)) return (value - low) / (high - low);
  return (value / 2 - low / 2) / (high / 2 - low / 2);
}

std::vector<Panel> panels_of(const std::vector<PlottedRun>& runs, LossAxis axis) {
  std::vector<Panel> panels;
  for (const Metric& metric : metric_rows()) {
    if (metric.panel.empty()) continue;
    const bool is_loss = metric.key == "loss";
    Panel panel{.title = std::string(metric.panel),
                .curves = {},
                .marks = {},
                .is_log = is_loss && axis == LossAxis::logarithmic};
    for (const PlottedRun& run : runs) {
      std::vector<Point>& curve = panel.curves.emplace_back();
      std::vector<Point>& marks = panel.marks.emplace_back();
      for (const StepMetrics& step : run.steps)
        if (const auto value = number_of(metric, step)) curve.push_back({step.step, *value});
      if (!is_loss) continue;
      for (const auto* list : {&run.evaluations, &run.steps})
        for (const StepMetrics& step : *list)
          for (const auto& [name, loss] : step.valid_losses) marks.push_back({step.step, loss});
    }
    panels.push_back(std::move(panel));
  }
  return panels;
}

StepRange step_range(const std::vector<PlottedRun>& runs) {
  StepRange range{.first = std::numeric_limits<std::int64_t>::max(), .last = std::numeric_limits<std::int64_t>::min()};
  for (const PlottedRun& run : runs) {
    for (const auto* list : {&run.evaluations, &run.steps}) {
      if (list->empty()) continue;
      range.first = std::min(range.first, list->front().step);
      range.last = std::max(range.last, list->back().step);
    }
  }
  return range.first > range.last ? StepRange{} : range;
}

ValueRange value_range(const Panel& panel) {
  ValueRange range{.low = Limits::infinity(), .high = -Limits::infinity(), .is_log = panel.is_log};
  for (const auto* list : {&panel.curves, &panel.marks})
    for (const std::vector<Point>& points : *list)
      for (const Point& point : points) {
        if (!range.shows(point.value)) continue;
        range.low = std::min(range.low, point.value);
        range.high = std::max(range.high, point.value);
      }
  if (range.low > range.high) return panel.is_log ? ValueRange{.low = 1, .high = 10, .is_log = true} : ValueRange{};
  if (range.low > 0 && range.high / 100 > range.low) range.is_log = true;
  const bool is_empty = range.is_log ? std::log(range.low) == std::log(range.high) : range.low == range.high;
  return is_empty ? around(range.low, range.is_log) : range;
}

}  // namespace tessera::telemetry
