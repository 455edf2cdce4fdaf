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
// (every source that holds it sends it, the target itself included); else it has exactly one source. Transfers of one
// source need not be neighbours in the list, so an adding plan is carried out source by source, not in list order.
struct TransferPlan {
  int ranks = 0;
  bool adds = false;
  std::vector<Transfer> transfers = {};

  std::int64_t elements_sent(int rank) const;      // to others, not to itself; only tests call it
  std::int64_t elements_received(int rank) const;  // from others
};

// Every element `to` asks for is copied from one holder in `from`: itself if it holds it, else the one that has sent
// least so far (of these the next rank after the target), so holders are used evenly and every rank computes the same
// plan. Neighbouring boxes are joined: transfers are as large as the two layouts let them be. `from.state == partial`
// makes an adding plan, or, where `to` is partial too, moves inside ranks only: parts stay with their ranks. Errors:
// shapes or rank counts differ, a layout that validate() refuses, an element of `to` that no rank of `from` holds, `to`
// is partial while `from` is not, both are partial and some rank would not keep exactly its own elements. Cost:
// O(transfers) with a logarithm, for 1024 ranks and a million transfers some 70 ms.
TransferPlan redistribute(const Layout& from, const Layout& to);
// The gradient's way back: every holder in `compute` contributes; each holder in `storage` receives the sum. Always an
// adding plan. Errors: as redistribute; `storage` is partial.
TransferPlan redistribute_add(const Layout& compute, const Layout& storage);

// Each kind is recognised exactly when the plain collective over buffers that start at the local buffers' first
// elements, with dense counts, writes what the plan writes and nothing else. So padding behind a shard is fine (it is
// not counted), padding between shards in the target is not: there the answer is transfers.
enum class CollectiveKind {
  none,            // every element stays at its place in its rank: between two buffers a copy in place
  local,           // moves inside ranks only
  all_gather,      // every rank receives every rank's whole contiguous shard, in rank order
  reduce_scatter,  // adds; rank r receives the r-th contiguous part of every rank's buffer
  all_reduce,      // adds; every rank receives the whole buffer
  all_to_all,      // one contiguous run a pair of ranks, dense in rank order on both sides
  transfers,       // anything else
};
std::string_view name_of(CollectiveKind kind);

// counts[r]: elements of rank r's shard (all_gather, reduce_scatter), uneven ones too, 0 for ranks that hold nothing.
// For all_reduce counts has one entry, the buffer's elements. Empty otherwise: those of all_to_all are sums over the
// plan's transfers of a pair. `uniform`: all counts (for all_to_all of all pairs) are equal.
struct Collective {
  CollectiveKind kind = CollectiveKind::transfers;
  std::vector<std::int64_t> counts = {};
  bool uniform = false;
};
// `plan` is the one from `from` to `to`. An adding plan whose elements have one source each moves like a copying one.
Collective recognise(const TransferPlan& plan, const Layout& from, const Layout& to);

}  // namespace tessera::layout
