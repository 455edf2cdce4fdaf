// The additions of a gradient between the ranks that use a weight and the ranks that store parts of the weight
// (owners). In sequential order, there is one addition over all ranks. In hierarchical order, there are for every owner
// one addition inside each node and one addition between the nodes (reduction_tree.h).
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tessera/comm/ordered_addition.h"
#include "tessera/layout/layout.h"
#include "tessera/shard/parameter.h"
#include "tessera/shard/ways/reduction_tree.h"

namespace tessera::shard {

// The additions of one rank. The object contains only data, and must live until the work that it has enqueued is done.
// If has_nodes() is true, the order of calls is add_within, sum_within, add_between, sum. Otherwise it is add_between,
// sum.
class GradientAdditions {
 public:
  struct Messages {
    std::vector<comm::Send> sends;
    std::vector<comm::Receive> receives;
  };

  // `homes[r]` is the layout of the gradient on rank r, in the wire type. `owned[r]` is the layout of the sums that
  // rank r owns. Both describe a matrix of shape `shape`. In hierarchical order all homes must be equal.
  GradientAdditions(layout::Shape shape, const std::vector<layout::LocalLayout>& homes,
                    const std::vector<layout::LocalLayout>& owned, const ReductionTree& tree, int rank,
                    const ParameterTypes& types);

  bool has_nodes() const { return has_nodes_; }
  std::size_t scratch_bytes() const { return scratch_; }
  std::int64_t received_bytes() const { return received_; }  // bytes received from other ranks

  // `wire` is the gradient in the wire type. `scratch` is memory of scratch_bytes() bytes. All calls for one gradient
  // get the same `wire` and `scratch`.
  void add_within(comm::Communicator& group, const std::byte* wire, std::byte* scratch, Messages& messages) const;
  void sum_within(const quant::Kernels& kernels, const std::byte* wire, std::byte* scratch) const;
  void add_between(comm::Communicator& group, const std::byte* wire, std::byte* scratch, Messages& messages) const;
  // `squares` receives the sum of squares of each row of the result (comm/ordered_addition.h). Null: not written.
  void sum(const quant::Kernels& kernels, const std::byte* wire, const std::byte* scratch, std::byte* main_grad,
           comm::Start start, double* squares) const;

 private:
  // An addition and the offset of its memory in the scratch. An addition inside a node may write the sums of the node,
  // and an addition between nodes may read these sums. `sums` is the offset of the node's sums in the scratch.
  struct Step {
    comm::OrderedAddition addition;
    std::size_t scratch = 0;
    bool has_sums = false;
    std::size_t sums = 0;
    const std::byte* source(const std::byte* wire, const std::byte* scratch_begin) const {
      return has_sums ? scratch_begin + sums : wire;
    }
  };
  void place(std::vector<Step>& steps, std::size_t first);

  bool has_nodes_ = false;
  std::vector<Step> within_;   // additions inside this rank's node, one for each owner
  std::vector<Step> between_;  // additions between nodes, one for each owner to which this rank sends the sum of its
                               // node, itself included
  std::size_t own_ = 0;        // index in between_ of the addition whose sums this rank owns
  std::size_t scratch_ = 0;
  std::int64_t received_ = 0;
};

// Returns the additions of a parameter for the rank at `place`. `parts` are the rank's parts of the parameter. In a
// reduced replica with several compute groups, each rank contributes the gradient of its home part. If every rank of
// such a replica stores the whole parameter, only the first rank of each compute group contributes.
GradientAdditions additions_of(const RankParts& parts, const Cuts& cuts, const Place& place,
                               const ParameterTypes& types);

}  // namespace tessera::shard
