#include "tessera/train/update/lr_schedule.h"

#include <cmath>
#include <numbers>

#include "tessera/base/error.h"

namespace tessera::train {

double learning_rate(const LrSchedule& s, std::int64_t step) {
  TESSERA_CHECK(step >= 1, "learning rate: got step {}, expected at least 1", step);
  TESSERA_CHECK(s.schedule_steps >= 0, "learning rate: got {} steps of the schedule, expected at least 0",
                s.schedule_steps);
  if (step < s.warmup_steps) return s.lr * (static_cast<double>(step) / static_cast<double>(s.warmup_steps));
  if (s.shape == RateShape::constant || step == s.warmup_steps) return s.lr;
  if (step >= s.schedule_steps) return s.min_lr;
  const double progress =
      static_cast<double>(step - s.warmup_steps) / static_cast<double>(s.schedule_steps - s.warmup_steps);
  return s.min_lr + 0.5 * (s.lr - s.min_lr) * (1.0 + std::cos(std::numbers::pi * progress));
}

}  // namespace tessera::train
