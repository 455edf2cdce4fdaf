// The distribution of tokens over experts in a benchmark.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "tessera/runtime/runtime.h"

namespace tessera::bench {

// even: the router weights keep their initial values, which choose all experts nearly equally often. skewed: the router
// weights are changed by skew_routers. Some experts are then chosen by about half of the tokens, and most experts by
// few.
enum class Routing : std::uint8_t { even, skewed };

// Multiplies row e of every router's weight by 1 / (e + 1), so that the logits of the first experts have the largest
// variance. Called after the initial values are set. Collective.
void skew_routers(runtime::Runtime& runtime);

// Returns the load of the busiest expert: the largest count of a layer, divided by the mean count of the layer, as the
// maximum over layers. `counts` contains `experts` counts for each layer.
double expert_load(std::span<const std::int64_t> counts, std::int64_t experts);

}  // namespace tessera::bench
