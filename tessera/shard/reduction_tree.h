// In which order the parts of a gradient that ranks hold are added, and what travels for it. Pure.
//
// sequential    an owner adds the ranks' parts in rank order
// hierarchical  the ranks of a node first add their parts for each owner, in rank order, in the accumulator type,
//               unrounded; the owner adds the nodes' sums in node order. A node's sum for an owner is made by the
//               owner's counterpart in it (its relay), so each link between nodes carries one sum instead of all parts.
// sequential is the tree of nodes of one rank each.
#pragma once
#include <cstdint>
#include <vector>

#include "tessera/quant/dtype.h"
#include "tessera/shard/parameter.h"

namespace tessera::shard {

// As one of these ranks sees it.
class ReductionTree {
 public:
  // owned[r]: elements of the gradient that rank r owns. node: consecutive ranks of a node; the last node may
  // have fewer.
  ReductionTree(std::vector<std::int64_t> owned, int node, int rank);

  int size() const { return static_cast<int>(owned_.size()); }
  int nodes() const { return (size() + node_ - 1) / node_; }
  int node_of(int rank) const { return rank / node_; }
  int first_of(int node) const { return node * node_; }
  int members_of(int node) const;
  int relay(int owner, int node) const { return first_of(node) + owner % node_ % members_of(node); }

  std::int64_t owned(int rank) const { return owned_[static_cast<std::size_t>(rank)]; }
  // Owners whose sums over this rank's node it makes, in rank order, and the elements of all of them.
  std::vector<int> relayed() const;
  std::int64_t relayed_elements() const;
  // A node of one rank passes its part on as it is, in the wire type.
  quant::DType type_of(int node, quant::DType wire, quant::DType accumulator) const {
    return members_of(node) == 1 ? wire : accumulator;
  }

  // Bytes of this rank: received inside its node; of its node's sums (0 where the node has one rank); received from
  // other nodes.
  struct Bytes {
    std::int64_t within = 0, sums = 0, between = 0;
  };
  Bytes bytes(quant::DType wire, quant::DType accumulator) const;

 private:
  std::vector<std::int64_t> owned_;
  int node_, rank_;
};

// Returns the tree of a gradient that these ranks store (parameter.h), in cuts.duplicates duplicates, as the rank at
// `place` sees it.
ReductionTree tree_of(const layout::Layout& storage, const Cuts& cuts, const Place& place);

}  // namespace tessera::shard
