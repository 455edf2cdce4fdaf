#include "tessera/telemetry/metric_summary.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <type_traits>

namespace tessera::telemetry {
namespace {

void add_number(const Metric& metric, const StepMetrics& step, std::vector<double>& values) {
  if (const auto value = number_of(metric, step); value && !std::isnan(*value)) values.push_back(*value);
}

void set_median(const Metric& metric, std::vector<double> values, StepMetrics& medians) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  const auto set = [&](auto& value) {
    using Value = std::remove_cvref_t<decltype(value)>;
    if constexpr (requires { value.has_value(); })
      value = values.empty() ? Value() : static_cast<typename Value::value_type>(*middle);
    else if constexpr (std::is_arithmetic_v<Value>)
      value = values.empty() ? std::numeric_limits<Value>::quiet_NaN() : static_cast<Value>(*middle);
  };
  std::visit([&](auto member) { set(medians.*member); }, metric.member);
}

// Adds the values by format.
void add_total(const Metric& metric, const StepMetrics& step, StepMetrics& totals) {
  const auto add = [](auto& total, const auto& value) {
    if constexpr (requires { total.fill(0); }) std::ranges::transform(total, value, total.begin(), std::plus{});
  };
  std::visit([&](auto member) { add(totals.*member, step.*member); }, metric.member);
}

}  // namespace

StepMetrics medians_of(std::span<const StepMetrics> steps) {
  StepMetrics medians;
  for (const Metric& metric : metric_rows()) {
    std::vector<double> values;
    for (const StepMetrics& step : steps) add_number(metric, step, values);
    set_median(metric, std::move(values), medians);
  }
  return medians;
}

MetricSummary::MetricSummary() {
  for (const Metric& metric : metric_rows())
    if (metric.summary == InSummary::median || metric.summary == InSummary::other_median) values_[&metric];
}

void MetricSummary::add(const StepMetrics& step) {
  for (const Metric& metric : metric_rows()) {
    if (!applies_to(metric, step)) continue;
    if (metric.summary == InSummary::last)
      each_entry(metric, step, {}, [&](const std::string& key, const nlohmann::ordered_json& value) {
        if (!value.is_null()) last_[key] = value;
      });
    if (metric.summary == InSummary::other_total) add_total(metric, step, totals_);
  }
  if (!step.trained) return;
  for (auto& [metric, values] : values_) add_number(*metric, step, values);
}

StepMetrics MetricSummary::medians() const {
  StepMetrics medians;
  for (const auto& [metric, values] : values_) set_median(*metric, values, medians);
  return medians;
}

void MetricSummary::add_to(nlohmann::ordered_json& json) const {
  json.update(last_);
  const StepMetrics all = medians();
  for (const Metric& metric : metric_rows())
    if (metric.summary == InSummary::median)
      json[std::string(metric.key)] = values_.at(&metric).empty() ? nullptr : json_of(metric, all, {});
}

}  // namespace tessera::telemetry
