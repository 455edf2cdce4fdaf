// From two layouts the list of transfers that turns one into the other, and its recognition as a collective.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/layout/layout.h"

namespace tessera::layout {

// Copy `box` from rank `source` to rank `target`. Offsets and strides are in elements of the two local buffers.
struct Transfer {
  int source = 0, target = 0;
  Box box;
  std::int64_t source_offset = 0, source_stride = 0;
  std::int64_t target_offset = 0, target_stride = 0;
  bool operator==(const Transfer&) const = default;
};

// Ordered by (target, target_offset, source). When `adds`, a target element is the sum over its sources in rank order
// (every source that holds it sends it, the target itself included); else it has exactly one source.
struct Plan {
  int ranks = 0;
  bool adds = false;
  std::vector<Transfer> transfers = {};

  std::int64_t elements_sent(int rank) const;      // to others, not to itself
  std::int64_t elements_received(int rank) const;  // from others
};

// Every element `to` asks for is copied from one holder in `from`: itself if it holds it, else the holders are used
// evenly and deterministically (every rank computes the same plan). `from.state == partial` makes an adding plan.
// Errors: shapes or rank counts differ, an element of `to` that no rank of `from` holds, `to` is partial while `from`
// is not.
Plan redistribute(const Layout& from, const Layout& to);
// The gradient's way back: every holder in `compute` contributes; each holder in `storage` receives the sum.
Plan redistribute_add(const Layout& compute, const Layout& storage);

enum class CollectiveKind {
  none,            // nothing leaves a rank and nothing moves inside one
  local,           // moves inside ranks only
  all_gather,      // every rank receives every rank's whole contiguous shard, in rank order
  reduce_scatter,  // adds; rank r receives the r-th contiguous part of every rank's buffer
  all_reduce,      // adds; every rank receives the whole buffer
  all_to_all,      // one contiguous run a pair of ranks
  transfers,       // anything else
};
std::string_view name_of(CollectiveKind kind);

// counts[r]: elements of rank r's shard (all_gather, reduce_scatter), uneven ones too; empty otherwise. For all_reduce
// counts has one entry, the buffer's elements. `uniform`: all counts equal.
struct Collective {
  CollectiveKind kind = CollectiveKind::transfers;
  std::vector<std::int64_t> counts = {};
  bool uniform = false;
};
Collective recognise(const Plan& plan, const Layout& from, const Layout& to);

}  // namespace tessera::layout
