// The buckets of weights: the optimizer updates, casts and publishes one bucket after the other.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "tessera/schedule/events.h"

namespace tessera::schedule {

inline constexpr std::int64_t kOptimizerBuckets = 8;

// Returns the ids below `weights` in the order in which the training step first consumes these weights or reads their
// rows. Weights that the trace does not use are at the end. The optimizer publishes in this order, so that the weights
// that the next step needs first are gathered first.
std::vector<ParameterId> order_of_first_uses(const Trace& trace, int weights);

// Divides `order` (a result of order_of_first_uses) into at most kOptimizerBuckets buckets with about equal numbers of
// elements.
std::vector<std::vector<ParameterId>> optimizer_buckets(std::span<const ParameterId> order,
                                                        const std::function<std::int64_t(ParameterId)>& elements);

}  // namespace tessera::schedule
