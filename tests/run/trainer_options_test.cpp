#include "tessera/run/trainer_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::run {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(TrainerOptions, TakeTheRateScheduleFromTheSettings) {
  TrainConfig config{
      .schedule_steps = 20, .lr = 0.1, .min_lr = 0.01, .warmup_steps = 3, .lr_schedule = train::RateShape::constant};
  EXPECT_EQ(learning_rate(lr_schedule_of(config), 10), 0.1);
  config.lr_schedule = train::RateShape::cosine;
  EXPECT_EQ(learning_rate(lr_schedule_of(config), 20), 0.01);
  EXPECT_DOUBLE_EQ(learning_rate(lr_schedule_of(config), 1), 0.1 / 3);
  config.schedule_steps = -1;
  EXPECT_THAT([&] { lr_schedule_of(config); }, ThrowsMessage<Error>(HasSubstr("schedule_steps -1 is not resolved")));
}

}  // namespace
}  // namespace tessera::run
