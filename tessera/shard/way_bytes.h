// The bytes that the ways of a parameter move, hop by hop: the bytes that a rank receives from other ranks. Pure,
// computed from layouts alone. Plans, predictions, counters and timelines all use these numbers.
#pragma once
#include <vector>

#include "tessera/layout/redistribute.h"
#include "tessera/schedule/way.h"
#include "tessera/shard/parameter.h"

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

  // Returns the ways of the rank at `place`, in a replica with cuts.parts parts.
  Ways at(const Place& place) const;
  // Returns the maximum of each hop over the ranks of a replica with cuts.parts parts. `replicas` is the maximum over
  // all replicas, so that all ranks of one sum get the same number.
  Ways most() const;
  // Returns the sums over all ranks of the run, which must have the same sharding.
  Ways all_ranks() const;

 private:
  struct Moved {
    PlaneSpec spec;
    ParameterLayouts layouts;
    layout::TransferPlan over_compute;
    std::vector<layout::Layout> stored;  // by compute rank
  };
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
  layout::TransferPlan compute_sum_;  // of the gradient, if compute ranks add it up
  layout::Collective compute_collective_;
  std::vector<layout::Layout> stored_;  // of the weight, by compute rank
};

}  // namespace tessera::shard
