#include "tessera/bench/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "tessera/telemetry/trace_events.h"

namespace tessera::bench {
namespace {

using Rows = std::vector<std::vector<DeviceSpan>>;

// Sorts the spans by time, and puts each span into the first row whose last span has already ended.
Rows rows_without_overlap(std::vector<DeviceSpan> spans) {
  Rows rows;
  std::ranges::stable_sort(spans, {}, &DeviceSpan::begin_ns);
  for (DeviceSpan& span : spans) {
    auto row = std::ranges::find_if(rows, [&](const auto& one) { return one.back().end_ns <= span.begin_ns; });
    if (row == rows.end()) row = rows.emplace(rows.end());
    row->push_back(std::move(span));
  }
  return rows;
}

}  // namespace

nlohmann::ordered_json trace_of(std::vector<DeviceSpan> spans) {
  std::erase_if(spans, [](const DeviceSpan& span) { return span.end_ns <= span.begin_ns; });
  std::uint64_t first = spans.empty() ? 0 : spans.front().begin_ns;
  for (const DeviceSpan& span : spans) first = std::min(first, span.begin_ns);
  const auto seconds = [&](std::uint64_t ns) { return static_cast<double>(ns - first) * 1e-9; };

  std::map<std::uint32_t, std::vector<DeviceSpan>> streams;
  for (DeviceSpan& span : spans) streams[span.stream].push_back(std::move(span));
  auto events = nlohmann::ordered_json::array();
  telemetry::name_process(events, 0, "GPU");
  int row = 0;
  for (auto& [stream, of_stream] : streams) {
    for (int further = 1; std::vector<DeviceSpan> & in_row : rows_without_overlap(std::move(of_stream))) {
      telemetry::name_row(
          events, 0, row,
          further == 1 ? fmt::format("stream {}", stream) : fmt::format("stream {} ({})", stream, further));
      for (DeviceSpan& span : in_row)
        telemetry::add_span(events, 0, row,
                            {.name = std::move(span.name),
                             .category = std::move(span.kind),
                             .begin = seconds(span.begin_ns),
                             .end = seconds(span.end_ns),
                             .args = {{"stream", stream}, {"bytes", span.bytes}}},
                            0);
      ++row;
      ++further;
    }
  }
  return telemetry::trace_file(std::move(events));
}

}  // namespace tessera::bench
