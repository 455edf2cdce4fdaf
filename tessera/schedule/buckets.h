// The buckets in which the optimizer updates, casts and publishes weights.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "tessera/schedule/events.h"

namespace tessera::schedule {

inline constexpr std::int64_t kOptimizerBuckets = 8;

// The weights with ids below `weights` in the order in which a training step first consumes them (or reads rows of
// them), the rest behind: the order in which an optimizer publishes, so that the next step's first gathers start first.
std::vector<ParameterId> order_of_first_uses(const Trace& trace, int weights);

// Cuts `order`, the order of first uses, into at most kOptimizerBuckets buckets of about equal numbers of elements.
std::vector<std::vector<ParameterId>> optimizer_buckets(std::span<const ParameterId> order,
                                                        const std::function<std::int64_t(ParameterId)>& elements);

}  // namespace tessera::schedule
