// Computes, for each hop of a parameter's ways, the bytes that a rank receives from other ranks. The numbers are
// computed from layouts. Pure. Plans, predictions, counters and timelines all use these numbers.
#pragma once
#include <vector>

#include "tessera/layout/redistribute.h"
#include "tessera/schedule/way.h"
#include "tessera/shard/parameter.h"
#include "tessera/shard/parameter_layouts.h"
#include "tessera/shard/ways/reduction_tree.h"

namespace tessera::shard {

// The ways of a parameter, with the bytes that one rank receives.
struct Ways {
  schedule::Way gather;    // way of the weight, from storage to compute; empty for a table that exchanges rows
  schedule::Way reduce;    // way of a microbatch's gradient or of its rows, from compute to storage
  schedule::Way replicas;  // way of the sum over replicas, once a step
  schedule::Way publish;   // way of new weights, if each replica updates a part (ZeRO-1)
};

class WayBytes {
 public:
  // `by_rows` is the result of exchanges_rows() for these arguments.
  WayBytes(const ParameterSpec& spec, const ParameterLayouts& layouts, const ParameterTypes& types, const Cuts& cuts,
           bool by_rows);

  // Returns the ways of the rank at `place` in replica cuts.replica.
  Ways at(const Place& place) const;
  // Returns the maximum of each hop over the ranks of replica cuts.replica. `replicas` and `publish` are maximums over
  // all replicas, so that all ranks of one sum get equal numbers.
  Ways most() const;
  // Returns the sum of each hop over all ranks of the run. All ranks must have the same sharding.
  Ways all_ranks() const;

 private:
  struct Moved {
    PlaneSpec spec;
    ParameterLayouts layouts;
    // By part in a reduced replica, otherwise one entry; empty if parts do not overlap.
    std::vector<layout::TransferPlan> over_compute;
    StoredParts stored;
  };
  // The exchange for the sum of a gradient over one compute group.
  struct ComputeSum {
    layout::TransferPlan plan;
    layout::Collective collective;
  };
  // The exchanges over the ranks of Transfer::replicas in a mesh with dead places.
  struct Unequal {
    // By rank: bytes that it receives in the sum, and in the exchange of new weights.
    std::vector<std::int64_t> summed, published;
    std::vector<int> first;  // by replica: index of its first rank
  };
  Unequal unequal(int compute) const;
  const Unequal& unequal_of(const Place& place) const;
  std::size_t rank_in(const Unequal& exchange, const Place& place) const;
  // Returns the index of a compute group in the vectors by part.
  std::size_t group_index(const Place& place) const {
    return layouts_.groups.empty() ? 0 : static_cast<std::size_t>(place.part);
  }
  schedule::Way gather(const Place& place) const;
  schedule::Way reduce(const Place& place) const;
  schedule::Way sum_replicas(const Place& place) const;
  schedule::Way publish(const Place& place) const;
  bool splits() const { return layouts_.is_cut && cuts_.splits_state(); }

  ParameterSpec spec_;
  ParameterLayouts layouts_;
  ParameterTypes types_;
  Cuts cuts_;
  bool by_rows_, overlaps_, sums_compute_;
  std::vector<Moved> planes_;
  std::vector<ComputeSum> compute_sums_;    // by group_index(); set if compute ranks add terms of the gradient
  StoredParts stored_;                      // stored parts of the weight
  std::vector<ReductionBytes> reductions_;  // by layout of stored_; empty if storage ranks add nothing to each other
  std::vector<Unequal> unequal_;  // by compute rank, or one entry for all ranks; empty if all places have ranks
};

}  // namespace tessera::shard
