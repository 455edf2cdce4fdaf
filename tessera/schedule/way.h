// How something of a parameter travels: hops, one after the other, each over the ranks of a role.
#pragma once
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "tessera/schedule/activity.h"

namespace tessera::schedule {

struct Hop {
  Activity activity = Activity::gather;
  std::int64_t bytes = 0;  // that a rank receives from the others

  bool operator==(const Hop&) const = default;
};
using Way = std::vector<Hop>;  // empty: nothing moves

std::int64_t total_bytes(const Way& way);
// The bytes of one hop; 0 where the way has none.
std::int64_t bytes_over(const Way& way, Activity activity);
bool has_hop(const Way& way, Activity activity);
// Each hop gets the greater bytes of both. `way` may be empty; else both have the same hops.
void raise(Way& way, const Way& other);
// Adds the bytes of the other way, hop by hop. Hops that `way` lacks come to their places: a way's are in the order of
// Activity.
void add_hops(Way& way, const Way& other);
// The role of a hop's communicators (check/together.h).
std::string_view hop_role(Activity activity);

}  // namespace tessera::schedule
