#include "tessera/schedule/way.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::schedule {

std::int64_t total_bytes(const Way& way) {
  std::int64_t bytes = 0;
  for (const Hop& hop : way) bytes += hop.bytes;
  return bytes;
}

std::int64_t bytes_over(const Way& way, Activity activity) {
  const auto hop = std::ranges::find(way, activity, &Hop::activity);
  return hop == way.end() ? 0 : hop->bytes;
}

bool has_hop(const Way& way, Activity activity) {
  return std::ranges::find(way, activity, &Hop::activity) != way.end();
}

void raise(Way& way, const Way& other) {
  if (way.empty()) {
    way = other;
    return;
  }
  TESSERA_CHECK(std::ranges::equal(way, other, {}, &Hop::activity, &Hop::activity),
                "expected ways with the same hops, got ways of {} and {} hops", way.size(), other.size());
  for (std::size_t i = 0; i < way.size(); ++i) way[i].bytes = std::max(way[i].bytes, other[i].bytes);
}

void add_hops(Way& way, const Way& other) {
  for (const Hop& hop : other) {
    const auto at = std::ranges::lower_bound(way, hop.activity, {}, &Hop::activity);
    if (at == way.end() || at->activity != hop.activity)
      way.insert(at, hop);
    else
      at->bytes += hop.bytes;
  }
}

std::string_view hop_role(Activity activity) {
  switch (activity) {
    case Activity::gather:
      return "gather";
    case Activity::gather_compute:
      return "gather_compute";
    case Activity::reduce_compute:
      return "reduce_compute";
    case Activity::reduce:
      return "reduce";
    case Activity::replicas:
    case Activity::publish:
      return "replicas";
    case Activity::compute:
    case Activity::comm:
    case Activity::agreement:
      break;
  }
  throw Error("activity '{}' is not a hop of a way", name_of(activity));
}

}  // namespace tessera::schedule
