// Distributes the units of a weight (heads, columns, rows of the vocabulary) over the ranks of a compute group in which
// places are dead. Pure.
#pragma once
#include <cstdint>
#include <vector>

#include "tessera/layout/layout.h"
#include "tessera/shard/domain.h"

namespace tessera::shard {

// Returns, for each rank of a group, its units in local order. First come the units that the rank has in a full group
// of `places` places (layout::even_part). Then come the units that the rank adopts from the dead places. The numbers of
// units of the ranks differ by at most 1, and lower slots have more units. The units of the dead places, in the order
// of places, are given to the ranks in the order of ranks. Adjacent units are one range. Throws Error if the slots are
// empty, not ascending or not in [0, places).
std::vector<std::vector<layout::Range>> spread_units(std::int64_t units, int places, const Slots& slots);

// Returns the largest number of units of a rank, divided by the average over the ranks. 1 means that all ranks have
// equal work. Returns 1 if there are no units.
double imbalance(const std::vector<std::vector<layout::Range>>& units);

}  // namespace tessera::shard
