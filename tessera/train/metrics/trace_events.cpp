#include "tessera/train/metrics/trace_events.h"

#include <algorithm>
#include <array>
#include <utility>

namespace tessera::train {
namespace {

using nlohmann::ordered_json;

constexpr std::array<std::string_view, 7> kRows{"compute", "gather", "gather over tp", "reduce", "reduce over tp",
                                                "dp",      "tp"};

int row_of(std::string_view category) {
  if (category == "wait") category = "compute";
  if (category == "publish") category = "dp";  // they share the lane
  return static_cast<int>(std::ranges::find(kRows, category) - kRows.begin());
}

}  // namespace

std::string name_of_transfer(std::string_view what, const std::vector<std::string>& weights) {
  std::string name(what);
  if (!weights.empty()) name += " " + weights.front();
  if (weights.size() > 1) name += " and " + std::to_string(weights.size() - 1) + " more";
  return name;
}

void name_rows(ordered_json& events, int process, const std::string& name) {
  events.push_back({{"name", "process_name"}, {"ph", "M"}, {"pid", process}, {"args", {{"name", name}}}});
  for (const std::string_view row : kRows)
    events.push_back(
        {{"name", "thread_name"}, {"ph", "M"}, {"pid", process}, {"tid", row_of(row)}, {"args", {{"name", row}}}});
}

void add_span(ordered_json& events, int process, TraceSpan span, double origin) {
  if (span.end <= span.begin) return;
  const int row = row_of(span.category);
  events.push_back({{"name", std::move(span.name)},
                    {"cat", std::move(span.category)},
                    {"ph", "X"},
                    {"ts", (span.begin - origin) * 1e6},
                    {"dur", (span.end - span.begin) * 1e6},
                    {"pid", process},
                    {"tid", row},
                    {"args", std::move(span.args)}});
}

ordered_json trace_file(ordered_json events) {
  return {{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}};
}

}  // namespace tessera::train
