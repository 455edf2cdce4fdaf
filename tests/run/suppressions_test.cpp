#include "tessera/run/suppressions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/settings/text/step_times.h"
#include "tessera/train/trainer.h"
#include "tests/settings/config_test_support.h"

namespace tessera::run {
namespace {

using ::testing::HasSubstr;
using Times = std::map<std::int64_t, int>;

TEST(StepTimes, AreParsedWithTheirCounts) {
  EXPECT_EQ(settings::parse_step_times("", "--x"), Times());
  EXPECT_EQ(settings::parse_step_times("5", "--x"), (Times{{5, 1}}));
  EXPECT_EQ(settings::parse_step_times("6:2,5,70:10", "--x"), (Times{{5, 1}, {6, 2}, {70, 10}}));
  for (const char* bad : {",", "5,", ",5", "0", "-1", "5:0", "5:", ":2", "5:-1", "5;6", "5 ", "5:1:1", "five", "5,5",
                          "5,5:2", "1.5", "99999999999999999999", "5:99999999999"})
    EXPECT_THAT(base::refusal([&] { settings::parse_step_times(bad, "--x"); }), HasSubstr("--x")) << bad;
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
  const auto message_of = [](const train::Stop& stop) {
    Suppressions suppressions({});
    for (int i = 1; i < Suppressions::kMaxAttempts; ++i) suppressions.record_suppressed(8, stop);
    suppressions.record_counted();
    for (int i = 1; i < Suppressions::kMaxAttempts; ++i) suppressions.record_suppressed(9, stop);
    try {
      suppressions.record_suppressed(9, stop);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(message_of({.counter = "other", .count = 7}),
            "step 9: its update was suppressed 10 times in a row: stop counter 'other' is 7, expected 0");
  EXPECT_EQ(
      message_of({.counter = train::kExpertRoomStop, .count = 3}),
      "step 9: its update was suppressed 10 times in a row: a rank had more rows of experts than memory for them, "
      "which --expert-room sets");
}

}  // namespace
}  // namespace tessera::run
