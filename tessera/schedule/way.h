// A way is the list of hops over which a parameter's weight or gradient travels, in order. Each hop is a transfer
// between the ranks of one role.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "tessera/mesh/transfer.h"

namespace tessera::schedule {

// The transfers that may be hops.
inline constexpr std::array<mesh::Transfer, 6> kHops{mesh::Transfer::gather,         mesh::Transfer::gather_compute,
                                                     mesh::Transfer::reduce_compute, mesh::Transfer::reduce,
                                                     mesh::Transfer::replicas,       mesh::Transfer::publish};

struct Hop {
  mesh::Transfer transfer = mesh::Transfer::gather;
  std::int64_t bytes = 0;  // bytes that a rank receives from other ranks

  bool operator==(const Hop&) const = default;
};
using Way = std::vector<Hop>;  // empty: no transfer

std::int64_t total_bytes(const Way& way);
// Returns the bytes of the hop with this transfer, or 0 if the way does not contain the hop.
std::int64_t bytes_over(const Way& way, mesh::Transfer transfer);
bool has_hop(const Way& way, mesh::Transfer transfer);
// Sets the bytes of each hop of `way` to the maximum of the two ways' bytes. An empty `way` becomes a copy of `other`.
// Throws Error if `way` is not empty and the ways have different hops.
void raise(Way& way, const Way& other);
// Adds the bytes of each hop of `other` to `way`. Inserts hops that `way` lacks, in the order of kHops.
void add_hops(Way& way, const Way& other);

}  // namespace tessera::schedule
