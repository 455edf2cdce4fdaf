// Computes the learning rate of a step.
#pragma once
#include <cstdint>

namespace tessera::train {

// wsd: warm-up, stable, decay (arXiv 2404.06395).
enum class RateShape { constant, cosine, linear, wsd };
// The curve of a decay. x is the share of the decay that has passed, from 0 to 1:
//   linear  1 - x
//   sqrt    1 - sqrt(x)
//   cosine  (1 + cos(pi x)) / 2
enum class DecayShape { linear, sqrt, cosine };

struct LrSchedule {
  double lr = 3e-4, min_lr = 0.0;
  std::int64_t warmup_steps = 0, schedule_steps = 0;
  RateShape shape = RateShape::cosine;
  // wsd: the number of steps of the decay, and its curve.
  std::int64_t decay_steps = 0;
  DecayShape decay_shape = DecayShape::linear;
};

// Returns the learning rate of `step`, which is counted from 1. During the warm-up, up to step warmup_steps, the rate
// is lr * step / warmup_steps. After the warm-up, the rate of `constant` stays at lr. The other rates fall to min_lr at
// step schedule_steps, and stay there: `cosine` and `linear` from the end of the warm-up, along the curves of these
// names; `wsd` during the last decay_steps steps.
double learning_rate(const LrSchedule& schedule, std::int64_t step);

}  // namespace tessera::train
