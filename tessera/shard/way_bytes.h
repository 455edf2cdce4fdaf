// The bytes that the ways of a parameter move, hop by hop: the bytes that a rank receives from other ranks. Pure,
// computed from layouts alone. Plans, predictions, counters and timelines all use these numbers.
#pragma once
#include <vector>

#include "tessera/layout/redistribute.h"
#include "tessera/schedule/way.h"
#include "tessera/shard/parameter.h"
#include "tessera/shard/parameter_layouts.h"

namespace tessera::shard {

// The ways of one rank.
struct Ways {
  schedule::Way gather;    // the weight, from storage to compute; empty for a table whose rows travel by index
  schedule::Way reduce;    // a microbatch's gradient, or rows of it, from compute to storage
  schedule::Way replicas;  // the sum over replicas, once a step
  schedule::Way publish;   // new weights, if each replica updates a part (ZeRO-1)
};

class WayBytes {
 public:
  // by_rows is exchanges_rows() of these arguments.
  WayBytes(const ParameterSpec& spec, const ParameterLayouts& layouts, const ParameterTypes& types, const Cuts& cuts,
           bool by_rows);

  // Returns the ways of the rank at `place`, in the replica of the cuts.
  Ways at(const Place& place) const;
  // Returns the maximum of each hop over the ranks of the replica of the cuts. `replicas` and `publish` are maximums
  // over all replicas, so that all ranks of one sum get the same number.
  Ways most() const;
  // Returns the sums over all ranks of the run, which must have the same sharding.
  Ways all_ranks() const;

 private:
  struct Moved {
    PlaneSpec spec;
    ParameterLayouts layouts;
    std::vector<layout::TransferPlan> over_compute;  // by part in a reduced replica, else one; empty without overlaps
    StoredParts stored;
  };
  // The sum of a gradient over one compute group.
  struct ComputeSum {
    layout::TransferPlan plan;
    layout::Collective collective;
  };
  // The exchanges over the ranks of Via::replicas in a mesh with dead places.
  struct Unequal {
    std::vector<std::int64_t> summed, published;  // bytes that each rank receives
    std::vector<int> first;                       // by replica: its first rank
  };
  Unequal unequal(int compute) const;
  const Unequal& unequal_of(const Place& place) const;
  std::size_t rank_in(const Unequal& exchange, const Place& place) const;
  // Returns the index of the layouts of a compute group.
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
  std::vector<ComputeSum> compute_sums_;  // by group_index(), if compute ranks add the gradient
  StoredParts stored_;                    // of the weight
  std::vector<Unequal> unequal_;          // by compute rank, or one for all ranks; empty if all places have ranks
};

}  // namespace tessera::shard
