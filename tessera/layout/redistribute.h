// Computes the transfers that turn one layout into another, and recognises transfers that are one collective.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/layout/layout.h"

namespace tessera::layout {

// A copy of `box` from rank `source` to rank `target`. Offsets and strides are in elements of the two local buffers.
struct Transfer {
  int source = 0, target = 0;
  Box box;
  std::int64_t source_offset = 0, source_stride = 0;
  std::int64_t target_offset = 0, target_stride = 0;
  bool operator==(const Transfer&) const = default;
};

// The transfers are ordered by (target, target_offset, source). If `adds` is false, each target element has exactly one
// source. If `adds` is true, a target element is the sum over its sources in rank order. In an adding plan, every rank
// that holds the element is a source, including the target. The transfers of one source need not be adjacent in the
// list, so an adding plan is executed source by source and not in list order.
struct TransferPlan {
  int ranks = 0;
  bool adds = false;
  std::vector<Transfer> transfers = {};

  std::int64_t elements_sent(int rank) const;      // elements sent to other ranks; only for tests
  std::int64_t elements_received(int rank) const;  // elements received from other ranks
};

// Returns the plan that copies every element of `to` from one holder in `from`. If the target rank holds the element,
// the source is the target rank. If the target does not hold the element, the source is the holder that has sent least
// so far. If several holders have sent least, the next of them after the target is chosen. The plan therefore
// distributes the sends evenly over the holders, and every rank computes the same plan. Adjacent boxes are joined, so
// transfers are as large as the two layouts allow.
//
// If `from` is partial and `to` is not, the result is an adding plan. If both layouts are partial, data moves only
// within ranks, because the summands stay on their ranks.
//
// Throws Error for: different shapes or rank counts; a layout that validate() rejects; an element of `to` that no rank
// of `from` holds; a partial `to` if `from` is not partial; two partial layouts, if a rank would not keep exactly its
// own elements. Takes O(t log t) time for t transfers: about 70 ms for 1024 ranks and a million transfers.
TransferPlan redistribute(const Layout& from, const Layout& to);
// Returns the plan that reduces a gradient: every holder in `compute` contributes, and each holder in `storage`
// receives the sum. The plan always adds. Throws the errors of redistribute, and Error if `storage` is partial.
TransferPlan redistribute_add(const Layout& compute, const Layout& storage);

// A plan is recognised as a collective if and only if the collective writes exactly the elements that the plan writes.
// The collective starts at the first element of each local buffer and has no gaps. Padding at the end of a local buffer
// is allowed, because the collective does not reach the padding. If the target has padding between shards, the result
// is `transfers`.
enum class CollectiveKind {
  none,            // every element keeps its rank and its offset
  local,           // elements move only within ranks
  all_gather,      // every rank receives the whole contiguous shard of every rank, in rank order
  reduce_scatter,  // adds; rank r receives the r-th contiguous part of every rank's buffer
  all_reduce,      // adds; every rank receives the whole buffer
  all_to_all,      // one contiguous run for each pair of ranks, dense in rank order on both sides
  transfers,       // any other plan
};
std::string_view name_of(CollectiveKind kind);

// For all_gather and reduce_scatter, `counts[r]` is the number of elements of rank r's shard. Counts may differ and may
// be 0. For all_reduce, `counts` has one entry, the number of elements of the buffer. For the other kinds `counts` is
// empty. Callers compute the counts of an all_to_all from the transfers of each pair of ranks. `uniform` is true if all
// counts are equal; for all_to_all, if all pairs have equal counts.
struct Collective {
  CollectiveKind kind = CollectiveKind::transfers;
  std::vector<std::int64_t> counts = {};
  bool uniform = false;
};
// Returns the collective that executes `plan`, which must be the plan from `from` to `to`. An adding plan in which each
// element has one source is treated as a copying plan.
Collective recognise(const TransferPlan& plan, const Layout& from, const Layout& to);

}  // namespace tessera::layout
