#include "tessera/schedule/way.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::schedule {

std::int64_t total_bytes(const Way& way) {
  std::int64_t bytes = 0;
  for (const Hop& hop : way) bytes += hop.bytes;
  return bytes;
}

std::int64_t bytes_over(const Way& way, mesh::Transfer transfer) {
  const auto hop = std::ranges::find(way, transfer, &Hop::transfer);
  return hop == way.end() ? 0 : hop->bytes;
}

bool has_hop(const Way& way, mesh::Transfer transfer) {
  return std::ranges::find(way, transfer, &Hop::transfer) != way.end();
}

void raise(Way& way, const Way& other) {
  if (way.empty()) {
    way = other;
    return;
  }
  TESSERA_CHECK(std::ranges::equal(way, other, {}, &Hop::transfer, &Hop::transfer),
                "expected ways with the same hops, got ways of {} and {} hops", way.size(), other.size());
  for (std::size_t i = 0; i < way.size(); ++i) way[i].bytes = std::max(way[i].bytes, other[i].bytes);
}

void add_hops(Way& way, const Way& other) {
  for (const Hop& hop : other) {
    const auto at = std::ranges::lower_bound(way, hop.transfer, {}, &Hop::transfer);
    if (at == way.end() || at->transfer != hop.transfer)
      way.insert(at, hop);
    else
      at->bytes += hop.bytes;
  }
}

}  // namespace tessera::schedule
