// Computes the learning rate of a step.
#pragma once
#include <cstdint>

namespace tessera::train {

enum class RateShape { constant, cosine };

struct LrSchedule {
  double lr = 3e-4, min_lr = 0.0;
  std::int64_t warmup_steps = 0, schedule_steps = 0;
  RateShape shape = RateShape::cosine;
};

// Returns the learning rate of `step`, which is counted from 1. During the warm-up, up to step warmup_steps, the rate
// is lr * step / warmup_steps. After the warm-up, the rate of `constant` stays at lr. The rate of `cosine` falls along
// half a cosine from lr to min_lr at step schedule_steps, and stays at min_lr afterwards.
double learning_rate(const LrSchedule& schedule, std::int64_t step);

}  // namespace tessera::train
