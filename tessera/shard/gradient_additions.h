// The additions of a gradient on its way from the ranks that use a weight to the ranks that store parts of it. Without
// nodes there is one addition for all ranks. With nodes there is, for every owner, one addition inside each node and
// one between the nodes (reduction_tree.h).
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tessera/comm/ordered_addition.h"
#include "tessera/layout/layout.h"
#include "tessera/shard/parameter.h"
#include "tessera/shard/reduction_tree.h"

namespace tessera::shard {

// The additions of one rank. The object contains only data, and must live until the work that it has enqueued is done.
// If has_nodes(), the exchange inside the nodes and its sums run before the exchange between the nodes.
class GradientAdditions {
 public:
  struct Messages {
    std::vector<comm::Send> sends;
    std::vector<comm::Receive> receives;
  };

  // `home` is the layout of the gradient on each rank, in the wire type. `owned[r]` is the layout of the sums that rank
  // r receives. Both layouts describe a matrix of this shape.
  GradientAdditions(layout::Shape shape, const layout::LocalLayout& home, const std::vector<layout::LocalLayout>& owned,
                    const ReductionTree& tree, int rank, const ParameterTypes& types);

  bool has_nodes() const { return has_nodes_; }
  std::size_t scratch_bytes() const { return scratch_; }
  std::int64_t received_bytes() const { return received_; }  // received from other ranks

  // `wire` is the gradient. `scratch` is memory of scratch_bytes() bytes; all calls receive the same memory.
  void add_within(comm::Communicator& group, const std::byte* wire, std::byte* scratch, Messages& messages) const;
  void sum_within(const quant::Kernels& kernels, const std::byte* wire, std::byte* scratch) const;
  void add_between(comm::Communicator& group, const std::byte* wire, std::byte* scratch, Messages& messages) const;
  // `squares` receives the squares of the sums' rows (comm/ordered_addition.h). Null: not written.
  void sum(const quant::Kernels& kernels, const std::byte* wire, const std::byte* scratch, std::byte* main_grad,
           comm::Start start, double* squares) const;

 private:
  // An addition and the offset of its memory in the scratch. An addition inside a node may write the node's sums, and
  // an addition between nodes may read these sums. `sums` is the offset of the node's sums.
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
  std::vector<Step> within_;   // one for each owner, inside this rank's node
  std::vector<Step> between_;  // one for each owner that this rank relays, itself included
  std::size_t own_ = 0;        // index in between_ of the addition for this rank's sums
  std::size_t scratch_ = 0;
  std::int64_t received_ = 0;
};

}  // namespace tessera::shard
