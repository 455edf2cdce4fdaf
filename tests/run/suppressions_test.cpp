#include "tessera/run/suppressions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/run/config/step_times.h"
#include "tests/run/config_test_support.h"

namespace tessera::run {
namespace {

using ::testing::HasSubstr;
using Times = std::map<std::int64_t, int>;

TEST(StepTimes, AreParsedWithTheirCounts) {
  EXPECT_EQ(parse_step_times("", "--x"), Times());
  EXPECT_EQ(parse_step_times("5", "--x"), (Times{{5, 1}}));
  EXPECT_EQ(parse_step_times("6:2,5,70:10", "--x"), (Times{{5, 1}, {6, 2}, {70, 10}}));
  for (const char* bad : {",", "5,", ",5", "0", "-1", "5:0", "5:", ":2", "5:-1", "5;6", "5 ", "5:1:1", "five", "5,5",
                          "5,5:2", "1.5", "99999999999999999999", "5:99999999999"})
    EXPECT_THAT(base::refusal([&] { parse_step_times(bad, "--x"); }), HasSubstr("--x")) << bad;
}

TEST(Suppressions, AnInjectionLastsForSuppressedAttempts) {
  Suppressions suppressions({{5, 2}, {6, 1}});
  EXPECT_FALSE(suppressions.is_injected(4));
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_TRUE(suppressions.is_injected(5));
    EXPECT_TRUE(suppressions.is_injected(6));  // enqueued after step 5, and discarded with it
    suppressions.record_suppressed(5, {.counter = kDebugStop, .count = 1});
  }
  EXPECT_FALSE(suppressions.is_injected(5));
  EXPECT_EQ(suppressions.record_counted(), 2);
  EXPECT_TRUE(suppressions.is_injected(6));
  suppressions.record_suppressed(6, {.counter = "room", .count = 7});
  EXPECT_EQ(suppressions.record_counted(), 1);
  EXPECT_EQ(suppressions.record_counted(), 0);
  EXPECT_EQ(suppressions.by_counter(), (std::map<std::string, std::int64_t>{{kDebugStop, 2}, {"room", 1}}));
}

TEST(Suppressions, TooManyInARowEndTheRun) {
  Suppressions suppressions({});
  const auto suppress = [&](std::int64_t step) {
    suppressions.record_suppressed(step, {.counter = "room", .count = 7});
  };
  for (int i = 1; i < Suppressions::kMaxAttempts; ++i) suppress(8);
  suppressions.record_counted();
  for (int i = 1; i < Suppressions::kMaxAttempts; ++i) suppress(9);
  try {
    suppress(9);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "step 9: its update was suppressed 10 times in a row: stop counter 'room' is 7, expected 0");
  }
}

}  // namespace
}  // namespace tessera::run
