// What the ways of a parameter move, hop by hop, in bytes that a rank receives from others. Pure, from layouts alone:
// what is planned, predicted, counted and marked in a timeline all comes from here.
#pragma once
#include <vector>

#include "tessera/layout/redistribute.h"
#include "tessera/schedule/way.h"
#include "tessera/shard/parameter.h"

namespace tessera::shard {

// The ways of one rank.
struct Ways {
  schedule::Way gather;    // the weight, from storage to compute; empty of a table whose rows travel by index
  schedule::Way reduce;    // a microbatch's gradient, or rows of it, from compute to storage
  schedule::Way replicas;  // the sum over replicas, once a step
  schedule::Way publish;   // new weights, where each replica updates a part (ZeRO-1)
};

class WayBytes {
 public:
  // by_rows: exchanges_rows() of these.
  WayBytes(const ParameterSpec& spec, const ParameterLayouts& layouts, const ParameterTypes& types, const Cuts& cuts,
           bool by_rows);

  // place: of a replica that is cut into cuts.parts.
  Ways at(const Place& place) const;
  // The greatest, hop by hop, over the ranks of such a replica; of `replicas` over all replicas, so that all ranks of
  // one sum know it.
  Ways most() const;
  // Added up over all ranks of the run, which are cut alike.
  Ways of_all_ranks() const;

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
  layout::TransferPlan compute_sum_;  // of the gradient, where compute ranks add it up
  layout::Collective compute_collective_;
  std::vector<layout::Layout> stored_;  // of the weight, by compute rank
};

}  // namespace tessera::shard
