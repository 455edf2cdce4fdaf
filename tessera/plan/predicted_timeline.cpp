#include "tessera/plan/predicted_timeline.h"

#include <algorithm>

#include "tessera/telemetry/trace_events.h"

namespace tessera::plan {
namespace {

using mesh::Transfer;
using nlohmann::ordered_json;
using schedule::ParameterSize;
using schedule::Span;

// Returns the span of one hop of a unit's way (schedule/way.h), with the bytes that a rank receives for the weights of
// the unit.
telemetry::TraceSpan transfer(const StepPlan& step, const schedule::Unit& unit, schedule::Way ParameterSize::*way,
                              Transfer hop) {
  std::vector<std::string> weights;
  std::int64_t bytes = 0;
  for (const schedule::ParameterId id : unit) {
    const ParameterSize& size = step.parameters[static_cast<std::size_t>(id)].size;
    weights.push_back(size.name);
    bytes += bytes_over(size.*way, hop);
  }
  return {.name = telemetry::name_of_transfer(title_of(hop), weights),
          .args = {{"weights", weights}, {"bytes", bytes}}};
}

telemetry::TraceSpan columnwise_copy(const StepPlan& step, const Span& span) {
  const schedule::ColumnwiseCopy& copy = step.schedule.copies[static_cast<std::size_t>(span.index)];
  const auto unit = static_cast<std::size_t>(copy.unit);
  std::vector<std::string> weights;
  for (const schedule::ParameterId id : step.schedule.gather_units[unit])
    weights.push_back(step.parameters[static_cast<std::size_t>(id)].size.name);
  return {.name = telemetry::name_of_transfer("transpose", weights),
          .args = {{"weights", weights}, {"bytes", step.schedule.columnwise_bytes[unit]}}};
}

telemetry::TraceSpan gather(const StepPlan& step, const Span& span) {
  const schedule::Residency& residency = step.schedule.residencies[static_cast<std::size_t>(span.index)];
  return transfer(step, step.schedule.gather_units[static_cast<std::size_t>(residency.unit)], &ParameterSize::gather,
                  *span.hop);
}

telemetry::TraceSpan reduction(const StepPlan& step, const Span& span, schedule::Way ParameterSize::*way) {
  const schedule::Reduction& reduction = step.schedule.reductions[static_cast<std::size_t>(span.index)];
  return transfer(step, step.schedule.reduce_units[static_cast<std::size_t>(reduction.unit)], way, *span.hop);
}

telemetry::TraceSpan labelled(const StepPlan& step, const Span& span, const std::vector<std::string>& names) {
  const auto index = static_cast<std::size_t>(span.index);
  if (span.is_copy) return columnwise_copy(step, span);
  if (!span.hop) return {.name = step.costs.work[index], .args = {{"before", to_string(step.trace[index], names)}}};
  switch (*span.hop) {
    case Transfer::gather:
    case Transfer::gather_compute:
      return gather(step, span);
    case Transfer::replicas:
      return reduction(step, span, &ParameterSize::replicas);
    case Transfer::publish:
      return transfer(step, {step.trace[index].parameter}, &ParameterSize::publish, *span.hop);
    default:
      return reduction(step, span, &ParameterSize::reduce);
  }
}

}  // namespace

ordered_json timeline_json(const StepPlan& step) {
  ordered_json events = ordered_json::array();
  telemetry::name_rows(events, 0, "every rank");
  double first = 0;
  for (const Span& span : step.prediction.spans) first = std::min(first, span.begin);
  const std::vector<std::string> names = step.names();
  for (const Span& span : step.prediction.spans) {
    telemetry::TraceSpan labels = labelled(step, span, names);
    labels.category = span.hop ? title_of(*span.hop) : "compute";
    labels.begin = span.begin;
    labels.end = span.end;
    telemetry::add_span(events, 0, telemetry::row_of(span.hop), labels, first);
  }
  return telemetry::trace_file(std::move(events));
}

}  // namespace tessera::plan
