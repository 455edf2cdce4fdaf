// Chrome's trace-event format, which Perfetto opens: the parts that planned and measured steps share. A process stands
// for a rank, a row ("thread") for a lane or a stream. Perfetto drops a span that begins before 0, so times start at
// the first span. Perfetto also drops a span that overlaps the previous span in its row. Thread 0 of a process is the
// process's main thread, which has the number of the process. Therefore rows are numbered from 1, differently in every
// process.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::run {

// `category` is the name of a schedule::Activity for spans on its lane's row, or "wait" for spans on the row of
// compute.
struct TraceSpan {
  std::string name, category;
  double begin = 0, end = 0;  // seconds
  nlohmann::ordered_json args;
};

// Returns "gather NAME and 2 more".
std::string name_of_transfer(std::string_view what, const std::vector<std::string>& weights);

// Returns the row of a lane; `category` as in TraceSpan.
int row_of_lane(std::string_view category);

// Appends the names of a process and of a row for each lane.
void name_lanes(nlohmann::ordered_json& events, int process, const std::string& name);
// Append the name of a process, or of one of its rows (0 to 99; any number if there is only one process).
void name_process(nlohmann::ordered_json& events, int process, const std::string& name);
void name_row(nlohmann::ordered_json& events, int process, int row, const std::string& name);
// Appends a complete event ("X"). ts and dur are in microseconds from `origin` (seconds). Begin and end are rounded to
// nanoseconds, so that spans that touch do not overlap. Perfetto would drop the later of two overlapping spans. Skips
// an empty span.
void add_span(nlohmann::ordered_json& events, int process, int row, const TraceSpan& span, double origin);
// Appends an instant event of a process.
void add_mark(nlohmann::ordered_json& events, int process, const std::string& name, double time, double origin);
// {"traceEvents": events, "displayTimeUnit": "ms"}
nlohmann::ordered_json trace_file(nlohmann::ordered_json events);

}  // namespace tessera::run
