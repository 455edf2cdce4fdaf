// Tests requirements of Perfetto's reader. Adjacent spans of a row do not overlap in whole nanoseconds. The number of a
// row belongs to one process and is not the number of its main thread.
#include "tessera/telemetry/trace_events.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <set>

namespace tessera::telemetry {
namespace {

using nlohmann::ordered_json;

// Converts microseconds in the file to whole nanoseconds.
std::int64_t nanoseconds(const ordered_json& microseconds) {
  const ordered_json read = ordered_json::parse(microseconds.dump());
  const double value = read.get<double>() * 1000;
  EXPECT_NEAR(value, std::round(value), std::abs(value) * 1e-15) << microseconds.dump();
  return std::llround(value);
}

TEST(TraceEvents, AdjacentSpansStayAdjacent) {
  std::mt19937_64 random(1);
  for (const double origin : {0.0, -0.1, 1.0 / 3, 31'000.0}) {
    std::uniform_real_distribution<double> logarithm(-10.5, 0);
    ordered_json events = ordered_json::array();
    double time = origin;
    for (int i = 0; i < 2000; ++i) {
      const double begin = time;
      time += std::pow(10, logarithm(random));
      add_span(events, 0, 0, {.name = "work", .category = "compute", .begin = begin, .end = time}, origin);
    }
    std::int64_t end = 0;
    for (const ordered_json& event : events) {
      ASSERT_EQ(end, nanoseconds(event["ts"])) << event.dump();
      ASSERT_GE(event["dur"], 0);
      end += nanoseconds(event["dur"]);
    }
    EXPECT_NEAR(static_cast<double>(end) * 1e-9, time - origin, 1e-9);
  }
}

TEST(TraceEvents, AnEmptySpanIsNotAdded) {
  ordered_json events = ordered_json::array();
  add_span(events, 0, 0, {.name = "work", .category = "compute", .begin = 1, .end = 1}, 0);
  EXPECT_TRUE(events.empty());
}

TEST(TraceEvents, MarksAreRelativeToTheOrigin) {
  ordered_json events = ordered_json::array();
  add_mark(events, 0, "begins", 1, -0.5);
  EXPECT_EQ(events[0]["ts"], 1'500'000);
}

TEST(TraceEvents, RowsBelongToOneProcessAndAreNotItsMainThread) {
  constexpr int processes = 300;
  ordered_json events = ordered_json::array();
  for (int process = 0; process < processes; ++process) {
    name_rows(events, process, "rank");
    add_mark(events, process, "begins", 1, 0);
    add_span(events, process, row_of(std::nullopt), {.name = "wait", .category = "wait", .begin = 1, .end = 2}, 0);
  }
  std::map<int, std::pair<int, std::string>> rows;
  for (const ordered_json& event : events) {
    const int process = event["pid"];
    if (event["name"] == "process_name") continue;
    const int thread = event["tid"];
    EXPECT_NE(thread, process);
    if (event["name"] == "thread_name")
      EXPECT_TRUE(rows.emplace(thread, std::pair(process, event["args"]["name"])).second) << event.dump();
    else
      EXPECT_EQ(rows.at(thread), std::pair(process, std::string("compute"))) << event.dump();
  }
  EXPECT_EQ(rows.size(), 7u * processes);
}

TEST(TraceEvents, EachRecordedTransferHasANamedRow) {
  ordered_json events = ordered_json::array();
  name_rows(events, 0, "rank");
  using mesh::Transfer;
  for (const Transfer transfer : {Transfer::gather, Transfer::gather_compute, Transfer::reduce,
                                  Transfer::reduce_compute, Transfer::replicas, Transfer::program})
    EXPECT_EQ(events.at(static_cast<std::size_t>(row_of(transfer)) + 1)["args"]["name"], title_of(transfer));
  EXPECT_EQ(row_of(Transfer::publish), row_of(Transfer::replicas));
}

}  // namespace
}  // namespace tessera::telemetry
