// Chrome's trace-event format, which Perfetto opens: what planned and measured steps have in common there. A process
// stands for a rank, a row ("thread") for a lane or a stream. Of Perfetto's reader: what begins before 0 is dropped, so
// times are from the first span on; what overlaps the span before it in its row is dropped; thread 0 of a process is
// its main thread, whose number is the process's, so that rows are numbered from 1 on, differently in every process.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::run {

// On a lane's row `category` is as shard::name_of(Activity) has it, or "wait", on the row of compute.
struct TraceSpan {
  std::string name, category;
  double begin = 0, end = 0;  // seconds
  nlohmann::ordered_json args;
};

// "gather NAME and 2 more"
std::string name_of_transfer(std::string_view what, const std::vector<std::string>& weights);

// The row of a lane: `category` as in TraceSpan.
int row_of_lane(std::string_view category);

// Appends the names of a process and of a row for each lane.
void name_lanes(nlohmann::ordered_json& events, int process, const std::string& name);
// Appends the name of a process, of one of its rows (0 to 99, any where there is one process).
void name_process(nlohmann::ordered_json& events, int process, const std::string& name);
void name_row(nlohmann::ordered_json& events, int process, int row, const std::string& name);
// Appends a complete event ("X"), ts and dur in microseconds from `origin` (seconds), both ends rounded to nanoseconds:
// spans that touch still do, and none overlaps what follows, which Perfetto would drop. Nothing for an empty span.
void add_span(nlohmann::ordered_json& events, int process, int row, const TraceSpan& span, double origin);
// Appends an instant event of a process.
void add_mark(nlohmann::ordered_json& events, int process, const std::string& name, double time, double origin);
// {"traceEvents": events, "displayTimeUnit": "ms"}
nlohmann::ordered_json trace_file(nlohmann::ordered_json events);

}  // namespace tessera::run
