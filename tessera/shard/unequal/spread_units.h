// How the ranks of a compute group share the units of a weight (heads, columns, rows of the vocabulary) if some of its
// places are dead. Pure.
#pragma once
#include <cstdint>
#include <vector>

#include "tessera/layout/layout.h"
#include "tessera/shard/domain.h"

namespace tessera::shard {

// Returns, for each rank of a group, its units in local order: the part that it has in a full group of `places` places
// (layout::even_part), then the slices that it adopts from the dead places. Units are spread as evenly as possible:
// counts differ by at most 1, and lower slots have more. The slices of the dead places, in the order of places, go to
// the ranks in their order. Adjacent slices are one range. Throws Error if the slots are empty, not ascending or not in
// [0, places).
std::vector<std::vector<layout::Range>> spread_units(std::int64_t units, int places, const Slots& slots);

// The units of the rank with the most, divided by the average of the ranks. 1: all ranks have equal work. Without units
// the result is 1.
double imbalance(const std::vector<std::vector<layout::Range>>& units);

}  // namespace tessera::shard
