#include "tessera/telemetry/trace_events.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <utility>

namespace tessera::telemetry {
namespace {

using mesh::Transfer;
using nlohmann::ordered_json;

// The rows of a process; nullopt is compute. Publish events use the row of the sums over replicas.
constexpr std::array<std::optional<Transfer>, 7> kRowsOfTimeline{
    std::nullopt,     Transfer::gather,         Transfer::gather_compute,
    Transfer::reduce, Transfer::reduce_compute, lane_of(Transfer::publish),
    Transfer::program};

int thread_of(int process, int row) {
  constexpr int rows = 100;
  return process * rows + row + 1;
}

std::int64_t nanoseconds(double seconds) {
  return std::llround(seconds * 1e9);
}
double microseconds(std::int64_t nanoseconds) {
  return static_cast<double>(nanoseconds) / 1000;
}

}  // namespace

std::string name_of_transfer(std::string_view what, const std::vector<std::string>& weights) {
  std::string name(what);
  if (!weights.empty()) name += " " + weights.front();
  if (weights.size() > 1) name += " and " + std::to_string(weights.size() - 1) + " more";
  return name;
}

int row_of(std::optional<Transfer> transfer) {
  if (transfer == Transfer::publish) transfer = lane_of(Transfer::publish);
  return static_cast<int>(std::ranges::find(kRowsOfTimeline, transfer) - kRowsOfTimeline.begin());
}

void name_rows(ordered_json& events, int process, const std::string& name) {
  name_process(events, process, name);
  for (const std::optional<Transfer> transfer : kRowsOfTimeline)
    name_row(events, process, row_of(transfer), std::string(transfer ? title_of(*transfer) : "compute"));
}

void name_process(ordered_json& events, int process, const std::string& name) {
  events.push_back({{"name", "process_name"}, {"ph", "M"}, {"pid", process}, {"args", {{"name", name}}}});
}

void name_row(ordered_json& events, int process, int row, const std::string& name) {
  events.push_back({{"name", "thread_name"},
                    {"ph", "M"},
                    {"pid", process},
                    {"tid", thread_of(process, row)},
                    {"args", {{"name", name}}}});
}

void add_span(ordered_json& events, int process, int row, const TraceSpan& span, double origin) {
  if (span.end <= span.begin) return;
  const std::int64_t begin = nanoseconds(span.begin - origin), end = nanoseconds(span.end - origin);
  events.push_back({{"name", span.name},
                    {"cat", span.category},
                    {"ph", "X"},
                    {"ts", microseconds(begin)},
                    {"dur", microseconds(end - begin)},
                    {"pid", process},
                    {"tid", thread_of(process, row)},
                    {"args", span.args}});
}

void add_mark(ordered_json& events, int process, const std::string& name, double time, double origin) {
  events.push_back({{"name", name},
                    {"ph", "i"},
                    {"s", "p"},
                    {"ts", microseconds(nanoseconds(time - origin))},
                    {"pid", process},
                    {"tid", thread_of(process, 0)}});
}

ordered_json trace_file(ordered_json events) {
  return {{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}};
}

}  // namespace tessera::telemetry
