// The additions that take a gradient from the ranks that hold a copy of a weight to those that store parts of it: one
// for all, or, with a tree of nodes, one inside each node and one between the nodes for every owner
// (reduction_tree.h).
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tessera/comm/ordered_addition.h"
#include "tessera/layout/layout.h"
#include "tessera/shard/parameter.h"
#include "tessera/shard/reduction_tree.h"

namespace tessera::shard {

// As one rank sees them. Data only; it must live until what it has enqueued is done. The exchange within nodes, if
// has_nodes(), and its sums come before the exchange between them.
class GradientAdditions {
 public:
  struct Messages {
    std::vector<comm::Send> sends;
    std::vector<comm::Receive> receives;
  };

  // home: where the gradient lies that each rank gives, of the wire type. owned: by rank, where the sums lie that it
  // takes. Both of a matrix of this shape.
  GradientAdditions(layout::Shape shape, const layout::LocalLayout& home, const std::vector<layout::LocalLayout>& owned,
                    const ReductionTree& tree, int rank, const ParameterTypes& types);

  bool has_nodes() const { return has_nodes_; }
  std::size_t scratch_bytes() const { return scratch_; }
  std::int64_t received_bytes() const { return received_; }  // from other ranks

  // wire: the gradient; scratch: scratch_bytes() of memory, the same in all calls.
  void add_within(comm::Communicator& group, const std::byte* wire, std::byte* scratch, Messages& messages) const;
  void sum_within(const quant::Kernels& kernels, const std::byte* wire, std::byte* scratch) const;
  void add_between(comm::Communicator& group, const std::byte* wire, std::byte* scratch, Messages& messages) const;
  // squares: of the sums' rows, null for none (comm/ordered_addition.h).
  void sum(const quant::Kernels& kernels, const std::byte* wire, const std::byte* scratch, std::byte* main_grad,
           comm::Start start, double* squares) const;

 private:
  // An addition, and where in the scratch its memory lies, and the sums of a node that it takes up or makes.
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
  std::vector<Step> within_;   // of the owners for whom this rank's node makes sums
  std::vector<Step> between_;  // of the owners for whom this rank relays, itself included
  std::size_t own_ = 0;        // the one of between_ that makes this rank's sums
  std::size_t scratch_ = 0;
  std::int64_t received_ = 0;
};

}  // namespace tessera::shard
