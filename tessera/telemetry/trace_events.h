// Writes Chrome's trace-event format, which Perfetto opens, for planned and for measured steps. A process represents a
// rank, and a row ("thread") represents a lane or a stream. Perfetto drops spans that begin before 0, so times start at
// the first span. Perfetto also drops a span that overlaps the previous span in its row. In Perfetto, thread 0 of a
// process is its main thread, and its number is that of the process. Rows therefore have numbers from 1, and all rows
// of all processes have different numbers.
#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/mesh/transfer.h"

namespace tessera::telemetry {

struct TraceSpan {
  std::string name;
  std::string category;       // "compute", "wait" or the title of a mesh::Transfer
  double begin = 0, end = 0;  // seconds
  nlohmann::ordered_json args;
};

// Returns a text like "gather NAME and 2 more".
std::string name_of_transfer(std::string_view what, const std::vector<std::string>& weights);

// Returns the row of a recorded transfer; nullopt selects the row of compute.
int row_of(std::optional<mesh::Transfer> transfer);

// Appends the name of a process and the names of its rows.
void name_rows(nlohmann::ordered_json& events, int process, const std::string& name);
// name_process appends the name of a process. name_row appends the name of a row of a process. Rows have numbers from 0
// to 99, or any number if there is only one process.
void name_process(nlohmann::ordered_json& events, int process, const std::string& name);
void name_row(nlohmann::ordered_json& events, int process, int row, const std::string& name);
// Appends a span as a complete event ("X"). Times are relative to `origin` (seconds). ts and dur are in microseconds.
// Begin and end are rounded to nanoseconds, so that adjacent spans do not overlap. Empty spans are skipped.
void add_span(nlohmann::ordered_json& events, int process, int row, const TraceSpan& span, double origin);
// Appends an instant event of a process at `time`.
void add_mark(nlohmann::ordered_json& events, int process, const std::string& name, double time, double origin);
// Returns {"traceEvents": events, "displayTimeUnit": "ms"}.
nlohmann::ordered_json trace_file(nlohmann::ordered_json events);

}  // namespace tessera::telemetry
