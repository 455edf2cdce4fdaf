// Tests the file of `--profile`, with spans as CUPTI reports them.
#include "tessera/bench/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <tuple>

namespace tessera::bench {
namespace {

using nlohmann::ordered_json;
using ::testing::ElementsAre;

// Nanoseconds since 1970, as CUPTI counts. In microseconds, a double cannot represent each nanosecond.
constexpr std::uint64_t kNow = 1'795'375'204'056'892'161;

using Found = std::tuple<std::string, std::string, double, double>;  // row, name, ts, dur

std::vector<Found> found(const ordered_json& trace) {
  std::map<int, std::string> rows;
  std::vector<Found> spans;
  for (const ordered_json& event : trace["traceEvents"])
    if (event["name"] == "thread_name") rows[event["tid"]] = event["args"]["name"];
  for (const ordered_json& event : trace["traceEvents"])
    if (event["ph"] == "X") spans.emplace_back(rows.at(event["tid"]), event["name"], event["ts"], event["dur"]);
  return spans;
}

TEST(Profile, HasOneRowPerStreamWithNanoseconds) {
  const ordered_json trace = trace_of({{"c", "copy", 90, kNow + 2003, kNow + 2004, 17},
                                       {"b", "kernel", 7, kNow + 1001, kNow + 2002, 0},
                                       {"a", "kernel", 7, kNow, kNow + 1001, 0}});
  EXPECT_THAT(found(trace), ElementsAre(Found("stream 7", "a", 0, 1.001), Found("stream 7", "b", 1.001, 1.001),
                                        Found("stream 90", "c", 2.003, 0.001)));
  EXPECT_EQ(trace["traceEvents"].back()["args"], ordered_json({{"stream", 90}, {"bytes", 17}}));
}

TEST(Profile, OverlappingSpansOfAStreamGetMoreRows) {
  const ordered_json trace = trace_of({{"long", "kernel", 7, kNow, kNow + 5000, 0},
                                       {"within", "kernel", 7, kNow + 1000, kNow + 2000, 0},
                                       {"third", "kernel", 7, kNow + 1500, kNow + 6000, 0},
                                       {"next", "kernel", 7, kNow + 2000, kNow + 3000, 0},
                                       {"last", "kernel", 7, kNow + 5000, kNow + 7000, 0}});
  EXPECT_THAT(found(trace), ElementsAre(Found("stream 7", "long", 0, 5), Found("stream 7", "last", 5, 2),
                                        Found("stream 7 (2)", "within", 1, 1), Found("stream 7 (2)", "next", 2, 1),
                                        Found("stream 7 (3)", "third", 1.5, 4.5)));
}

TEST(Profile, OmitsSpansWithoutTimes) {
  const ordered_json trace = trace_of({{"unknown", "kernel", 7, 0, 0, 0}, {"a", "kernel", 7, kNow, kNow + 1001, 0}});
  EXPECT_THAT(found(trace), ElementsAre(Found("stream 7", "a", 0, 1.001)));
}

TEST(Profile, IsEmptyWithoutSpans) {
  EXPECT_THAT(found(trace_of({})), ElementsAre());
}

}  // namespace
}  // namespace tessera::bench
