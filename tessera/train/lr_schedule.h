// The learning rate of a step.
#pragma once
#include <cstdint>

namespace tessera::train {

enum class RateShape { constant, cosine };

struct LrSchedule {
  double lr = 3e-4, min_lr = 0.0;
  std::int64_t warmup_steps = 0, schedule_steps = 0;
  RateShape shape = RateShape::cosine;
};

// Returns the rate of `step`, which counts from 1. Warm-up: lr * step / warmup_steps up to step warmup_steps. After the
// warm-up, `constant` stays at lr. `cosine` falls from lr along half a cosine to min_lr at schedule_steps, and stays
// there.
double learning_rate(const LrSchedule& schedule, std::int64_t step);

}  // namespace tessera::train
