// The load of experts in a benchmark.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "tessera/runtime/runtime.h"

namespace tessera::bench {

// even: the initial values of a router, which choose all experts nearly equally often. skewed: some experts are chosen
// in about half of the cases, and most are chosen seldom.
enum class Routing : std::uint8_t { even, skewed };

// Multiplies row e of every router by 1 / (e + 1), so that the logits of the first experts vary most. Called after the
// initial values are set. Collective.
void skew_routers(runtime::Runtime& runtime);

// counts: of each layer's `experts` experts. Returns the largest count divided by the mean, of the layer where this
// ratio is largest.
double expert_load(std::span<const std::int64_t> counts, std::int64_t experts);

}  // namespace tessera::bench
