#include "tessera/train/plan_timeline.h"

#include <algorithm>

namespace tessera::train {
namespace {

using nlohmann::ordered_json;
using shard::LaneKind;
using shard::Span;

struct Label {
  std::string name;
  ordered_json args;
};

const shard::Unit& members(const std::vector<shard::Unit>& units, int unit) {
  return units[static_cast<std::size_t>(unit)];
}

Label transfer(const StepPlan& step, const std::string& what, const shard::Unit& unit, std::int64_t bytes) {
  ordered_json names = ordered_json::array();
  for (const shard::ParameterId id : unit) names.push_back(step.parameters[static_cast<std::size_t>(id)].size.name);
  const std::string others = unit.size() > 1 ? " and " + std::to_string(unit.size() - 1) + " more" : "";
  return {what + " " + names[0].get<std::string>() + others, {{"weights", names}, {"bytes", bytes}}};
}

std::int64_t wire_bytes(const StepPlan& step, const shard::Unit& unit, std::int64_t shard::ParameterSize::*member) {
  std::int64_t bytes = 0;
  for (const shard::ParameterId id : unit) bytes += step.parameters[static_cast<std::size_t>(id)].size.*member;
  return bytes;
}

Label label_of(const StepPlan& step, const Span& span, const std::vector<std::string>& names) {
  const auto index = static_cast<std::size_t>(span.index);
  if (span.lane == LaneKind::compute)
    return {step.costs.work[index], {{"before", to_string(step.trace[index], names)}}};
  if (span.lane == LaneKind::gather) {
    const shard::Unit& unit = members(step.schedule.gather_units, step.schedule.residencies[index].unit);
    return transfer(step, "gather", unit, wire_bytes(step, unit, &shard::ParameterSize::gather_wire));
  }
  const shard::Unit& unit = members(step.schedule.reduce_units, step.schedule.reductions[index].unit);
  if (span.lane == LaneKind::reduce)
    return transfer(step, "reduce", unit, wire_bytes(step, unit, &shard::ParameterSize::reduce_wire));
  return transfer(step, "replicas", unit, wire_bytes(step, unit, &shard::ParameterSize::replica_wire));
}

}  // namespace

ordered_json timeline_json(const StepPlan& step) {
  ordered_json events = ordered_json::array();
  events.push_back({{"name", "process_name"}, {"ph", "M"}, {"pid", 0}, {"args", {{"name", "every rank"}}}});
  for (const LaneKind lane : {LaneKind::compute, LaneKind::gather, LaneKind::reduce, LaneKind::dp})
    events.push_back({{"name", "thread_name"},
                      {"ph", "M"},
                      {"pid", 0},
                      {"tid", static_cast<int>(lane)},
                      {"args", {{"name", name_of(lane)}}}});
  double first = 0;
  for (const Span& span : step.prediction.spans) first = std::min(first, span.begin);
  const std::vector<std::string> names = step.names();
  for (const Span& span : step.prediction.spans) {
    if (span.end <= span.begin) continue;
    Label label = label_of(step, span, names);
    events.push_back({{"name", std::move(label.name)},
                      {"cat", name_of(span.lane)},
                      {"ph", "X"},
                      {"ts", (span.begin - first) * 1e6},
                      {"dur", (span.end - span.begin) * 1e6},
                      {"pid", 0},
                      {"tid", static_cast<int>(span.lane)},
                      {"args", std::move(label.args)}});
  }
  return {{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}};
}

}  // namespace tessera::train
