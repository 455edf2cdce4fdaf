// The buckets in which the optimizer updates, casts and publishes weights.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "tessera/schedule/events.h"

namespace tessera::schedule {

inline constexpr std::int64_t kOptimizerBuckets = 8;

// Returns the weights with ids below `weights` in the order in which a training step first consumes them or reads their
// rows. Weights that the trace does not use follow at the end. The optimizer publishes in this order, so that the next
// step's first gathers start first.
std::vector<ParameterId> order_of_first_uses(const Trace& trace, int weights);

// Divides `order`, the order of first uses, into at most kOptimizerBuckets buckets of about equal numbers of elements.
std::vector<std::vector<ParameterId>> optimizer_buckets(std::span<const ParameterId> order,
                                                        const std::function<std::int64_t(ParameterId)>& elements);

}  // namespace tessera::schedule
