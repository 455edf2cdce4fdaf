#include "tessera/train/update/lr_schedule.h"

#include <cmath>
#include <numbers>

#include "tessera/base/error.h"

namespace tessera::train {

namespace {

// Returns the share of the distance from min_lr to lr. `x` is the share of the decay that has passed.
double curve(DecayShape shape, double x) {
  switch (shape) {
    case DecayShape::linear:
      return 1.0 - x;
    case DecayShape::sqrt:
      return 1.0 - std::sqrt(x);
    case DecayShape::cosine:
      return 0.5 * (1.0 + std::cos(std::numbers::pi * x));
  }
  throw Error("learning rate: the shape of the decay is unknown");
}

DecayShape shape_of(const LrSchedule& s) {
  if (s.shape == RateShape::wsd) return s.decay_shape;
  return s.shape == RateShape::cosine ? DecayShape::cosine : DecayShape::linear;
}

}  // namespace

double learning_rate(const LrSchedule& s, std::int64_t step) {
  TESSERA_CHECK(step >= 1, "learning rate: got step {}, expected at least 1", step);
  TESSERA_CHECK(s.schedule_steps >= 0, "learning rate: got {} steps of the schedule, expected at least 0",
                s.schedule_steps);
  if (step < s.warmup_steps) return s.lr * (static_cast<double>(step) / static_cast<double>(s.warmup_steps));
  const std::int64_t begin = s.shape == RateShape::wsd ? s.schedule_steps - s.decay_steps : s.warmup_steps;
  if (s.shape == RateShape::constant || step == s.warmup_steps || step <= begin) return s.lr;
  if (step >= s.schedule_steps) return s.min_lr;
  const double passed = static_cast<double>(step - begin) / static_cast<double>(s.schedule_steps - begin);
  return s.min_lr + (s.lr - s.min_lr) * curve(shape_of(s), passed);
}

}  // namespace tessera::train
