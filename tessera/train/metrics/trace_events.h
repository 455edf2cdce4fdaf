// Chrome's trace-event format, which Perfetto opens: what planned and measured steps have in common there. A process
// stands for a rank, a row for a lane. Perfetto drops what begins before 0, so times are from the first span on.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::train {

// One row a lane; `category` as shard::name_of(Activity) has it, "wait" on the row of compute.
struct TraceSpan {
  std::string name, category;
  double begin = 0, end = 0;  // seconds
  nlohmann::ordered_json args;
};

// "gather NAME and 2 more"
std::string name_of_transfer(std::string_view what, const std::vector<std::string>& weights);

// Appends the names of a process and of its rows.
void name_rows(nlohmann::ordered_json& events, int process, const std::string& name);
// Appends a complete event ("X"), ts and dur in microseconds from `origin` (seconds); nothing for an empty span.
void add_span(nlohmann::ordered_json& events, int process, TraceSpan span, double origin);
// {"traceEvents": events, "displayTimeUnit": "ms"}
nlohmann::ordered_json trace_file(nlohmann::ordered_json events);

}  // namespace tessera::train
