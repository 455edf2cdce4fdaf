// The order in which the ranks' gradients are added, and the bytes that the ranks receive. Pure.
//
// sequential    An owner adds the ranks' parts in rank order.
// hierarchical  First, the parts of a node's ranks are added for each owner, in rank order and in the accumulator type,
//               without rounding to the wire type. Then the owner adds the sums of the nodes in node order.
//
// In each node one rank, the relay of an owner, computes the node's sum for this owner. Links between nodes then
// transfer one sum per node instead of one part per rank. The sequential order is the tree in which each node has one
// rank.
#pragma once
#include <cstdint>
#include <vector>

#include "tessera/quant/dtype.h"
#include "tessera/shard/parameter.h"

namespace tessera::shard {

// The tree from the point of view of one rank.
class ReductionTree {
 public:
  // owned[r] is the number of elements of the gradient that rank r owns. A node consists of `node` consecutive ranks;
  // the last node may have fewer ranks.
  ReductionTree(std::vector<std::int64_t> owned, int node, int rank);

  int size() const { return static_cast<int>(owned_.size()); }
  int nodes() const { return (size() + node_ - 1) / node_; }
  int node_of(int rank) const { return rank / node_; }
  int first_of(int node) const { return node * node_; }
  int members_of(int node) const;
  int relay(int owner, int node) const { return first_of(node) + owner % node_ % members_of(node); }

  std::int64_t owned(int rank) const { return owned_[static_cast<std::size_t>(rank)]; }
  // Returns the owners, in rank order, for which this rank computes the sums of its node.
  std::vector<int> relayed() const;
  // Returns the type in which the sum of a node is sent. A node of one rank sends its part unchanged, in the wire type.
  quant::DType type_of(int node, quant::DType wire, quant::DType accumulator) const {
    return members_of(node) == 1 ? wire : accumulator;
  }

 private:
  std::vector<std::int64_t> owned_;
  int node_, rank_;
};

// Returns the tree for one rank: index `rank` in the layout `storage` (parameter.h), and duplicate number `duplicate`.
// Each of the cuts.duplicates duplicates stores the gradient in this layout.
ReductionTree tree_of(const layout::Layout& storage, const Cuts& cuts, int rank, int duplicate);

// The bytes of a reduction on each of its ranks. The constructor takes time in proportion to the number of ranks, and
// of() takes constant time. A plan asks for the bytes of every rank.
class ReductionBytes {
 public:
  // The arguments of ReductionTree.
  ReductionBytes(std::vector<std::int64_t> owned, int node);
  // The trees of tree_of() for all ranks and duplicates.
  ReductionBytes(const layout::Layout& storage, const Cuts& cuts);

  // `within`: received inside the node. `sums`: memory of the sums that the rank computes for its node; 0 if the node
  // has one rank. `between`: received from other nodes.
  struct Bytes {
    std::int64_t within = 0, sums = 0, between = 0;
  };
  // `rank` and `duplicate` are those of tree_of().
  Bytes of(int rank, int duplicate, quant::DType wire, quant::DType accumulator) const;

 private:
  ReductionTree tree_;  // of the first rank
  int stored_ = 0;      // number of ranks of one duplicate
  // Elements of the sums that a rank computes for its node, by the rank's index in its node: of a node with all ranks,
  // and of the last node.
  std::vector<std::int64_t> relayed_, relayed_last_;
};

}  // namespace tessera::shard
