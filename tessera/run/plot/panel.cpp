#include "tessera/run/plot/panel.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tessera::run {

double AxisRange::position(double value) const {
  if (is_log) return (std::log(value) - std::log(low)) / (std::log(high) - std::log(low));
  return (value - low) / (high - low);
}

std::vector<Panel> panels_of(const std::vector<PlottedRun>& runs) {
  struct Metric {
    const char* title;
    double StepMetrics::*value;
  };
  std::vector<Panel> panels;
  for (const Metric& metric : {Metric{"loss (nats a token)", &StepMetrics::loss},
                               {"grad_norm", &StepMetrics::grad_norm},
                               {"lr", &StepMetrics::lr},
                               {"tokens_per_second", &StepMetrics::tokens_per_second}}) {
    Panel panel{.title = metric.title, .curves = {}, .marks = {}};
    for (const PlottedRun& run : runs) {
      std::vector<Point>& curve = panel.curves.emplace_back();
      std::vector<Point>& marks = panel.marks.emplace_back();
      for (const StepMetrics& step : run.steps) {
        curve.push_back({static_cast<double>(step.step), step.*metric.value});
        if (metric.value == &StepMetrics::loss && step.valid_loss)
          marks.push_back({static_cast<double>(step.step), *step.valid_loss});
      }
    }
    panels.push_back(std::move(panel));
  }
  return panels;
}

AxisRange step_range(const std::vector<PlottedRun>& runs) {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (const PlottedRun& run : runs) {
    if (run.steps.empty()) continue;
    low = std::min(low, static_cast<double>(run.steps.front().step));
    high = std::max(high, static_cast<double>(run.steps.back().step));
  }
  if (low > high) return {};
  if (low == high) return {.low = low - 0.5, .high = high + 0.5};
  return {.low = low, .high = high};
}

AxisRange value_range(const Panel& panel) {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (const auto* list : {&panel.curves, &panel.marks})
    for (const std::vector<Point>& points : *list)
      for (const Point& point : points) {
        if (!std::isfinite(point.value)) continue;
        low = std::min(low, point.value);
        high = std::max(high, point.value);
      }
  if (low > high) return {};
  if (low > 0 && high > 100 * low) return {.low = low, .high = high, .is_log = true};
  if (low == high) {
    const double margin = low == 0 ? 1 : std::abs(low) / 10;
    return {.low = low - margin, .high = high + margin};
  }
  return {.low = low, .high = high};
}

}  // namespace tessera::run
