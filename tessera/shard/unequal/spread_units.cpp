#include "tessera/shard/unequal/spread_units.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::shard {
namespace {

using layout::Range;

std::int64_t count_of(const std::vector<Range>& ranges) {
  std::int64_t count = 0;
  for (const Range& range : ranges) count += range.size();
  return count;
}

// Appends a slice. Adjacent slices become one range.
void append(std::vector<Range>& ranges, const Range& slice) {
  if (slice.size() == 0) return;
  if (!ranges.empty() && ranges.back().end == slice.begin)
    ranges.back().end = slice.end;
  else
    ranges.push_back(slice);
}

void check_slots(int places, const Slots& slots) {
  TESSERA_CHECK(!slots.empty(), "a compute group of {} places has no rank", places);
  for (std::size_t i = 0; i < slots.size(); ++i)
    TESSERA_CHECK(slots[i] >= 0 && slots[i] < places && (i == 0 || slots[i - 1] < slots[i]),
                  "a compute group of {} places has a rank at place {}, expected ascending places below {}", places,
                  slots[i], places);
}

// Returns the parts of the dead places, in the order of places.
std::vector<Range> orphans(std::int64_t units, int places, const Slots& slots) {
  std::vector<Range> parts;
  for (int place = 0; place < places; ++place)
    if (std::ranges::find(slots, place) == slots.end()) append(parts, layout::even_part(units, place, places));
  return parts;
}

// Returns the number of units that each rank adopts. One unit at a time goes to the rank with the fewest units; among
// several such ranks, to the lowest.
std::vector<std::int64_t> shares(std::vector<std::int64_t> has, std::int64_t left) {
  const auto ranks = static_cast<std::int64_t>(has.size());
  const std::vector<std::int64_t> own = has;
  // Own parts differ by at most 1, so no rank has more than the final level.
  std::int64_t all = left;
  for (const std::int64_t count : own) all += count;
  for (std::int64_t& count : has) count = std::max(count, all / ranks);
  std::int64_t given = 0;
  for (std::size_t rank = 0; rank < has.size(); ++rank) given += has[rank] - own[rank];
  for (std::size_t rank = 0; given < left; ++rank)
    if (has[rank] == all / ranks) ++has[rank], ++given;
  for (std::size_t rank = 0; rank < has.size(); ++rank) has[rank] -= own[rank];
  return has;
}

}  // namespace

std::vector<std::vector<Range>> spread_units(std::int64_t units, int places, const Slots& slots) {
  check_slots(places, slots);
  std::vector<std::vector<Range>> result;
  std::vector<std::int64_t> own;
  for (const int slot : slots) {
    result.push_back({layout::even_part(units, slot, places)});
    own.push_back(result.back().front().size());
  }
  const std::vector<Range> free = orphans(units, places, slots);
  const std::vector<std::int64_t> adopted = shares(own, count_of(free));
  std::size_t from = 0;
  std::int64_t used = 0;  // number of units of free[from] that are used
  for (std::size_t rank = 0; rank < result.size(); ++rank)
    for (std::int64_t left = adopted[rank]; left > 0;) {
      const Range& part = free[from];
      const std::int64_t count = std::min(left, part.size() - used);
      append(result[rank], {part.begin + used, part.begin + used + count});
      left -= count;
      used += count;
      if (used == part.size()) ++from, used = 0;
    }
  return result;
}

double imbalance(const std::vector<std::vector<Range>>& units) {
  std::int64_t most = 0, all = 0;
  for (const std::vector<Range>& ranges : units) {
    most = std::max(most, count_of(ranges));
    all += count_of(ranges);
  }
  if (all == 0) return 1;
  return static_cast<double>(most) * static_cast<double>(units.size()) / static_cast<double>(all);
}

}  // namespace tessera::shard
