// Last values, medians and totals of metrics over steps.
#pragma once
#include <map>
#include <span>
#include <vector>

#include "tessera/telemetry/metric.h"

namespace tessera::telemetry {

// Returns the medians of all metrics that are single numbers. Steps in which a metric is not set or NaN do not count.
// The median of an even number of values is the upper of the two middle values. Without values, an optional metric is
// not set, another floating-point metric is NaN, and an integer is 0.
StepMetrics medians_of(std::span<const StepMetrics> steps);

// The metrics of a run in summary.json, computed step by step.
class MetricSummary {
 public:
  MetricSummary();
  void add(const StepMetrics& step);

  StepMetrics medians() const;                           // as in medians_of
  const StepMetrics& totals() const { return totals_; }  // the values by format
  // Adds the rows `last`, if they have a value, and the rows `median` under their keys. Without values, a
  // floating-point median is null.
  void add_to(nlohmann::ordered_json& json) const;

 private:
  nlohmann::ordered_json last_ = nlohmann::ordered_json::object();
  StepMetrics totals_;
  std::map<const Metric*, std::vector<double>> values_;  // key: a row with a median; value: the values of the steps
};

}  // namespace tessera::telemetry
