// A way is the list of hops over which a parameter's weight or gradient travels, in order. Each hop is a transfer
// between the ranks of one role.
#pragma once
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "tessera/schedule/activity.h"

namespace tessera::schedule {

struct Hop {
  Activity activity = Activity::gather;
  std::int64_t bytes = 0;  // bytes that a rank receives from other ranks

  bool operator==(const Hop&) const = default;
};
using Way = std::vector<Hop>;  // empty: no transfer

std::int64_t total_bytes(const Way& way);
// Returns the bytes of the hop with this activity, or 0 if the way does not contain the hop.
std::int64_t bytes_over(const Way& way, Activity activity);
bool has_hop(const Way& way, Activity activity);
// Sets the bytes of each hop of `way` to the maximum of the two ways' bytes. An empty `way` becomes a copy of `other`.
// Throws Error if `way` is not empty and the ways have different hops.
void raise(Way& way, const Way& other);
// Adds the bytes of each hop of `other` to `way`. Inserts hops that `way` lacks, in the order of Activity.
void add_hops(Way& way, const Way& other);
// Returns the role of a hop's communicators (check/together.h). Throws Error if the activity is not a hop.
std::string_view hop_role(Activity activity);

}  // namespace tessera::schedule
