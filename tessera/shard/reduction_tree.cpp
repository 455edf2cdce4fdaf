#include "tessera/shard/reduction_tree.h"

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::shard {

ReductionTree::ReductionTree(std::vector<std::int64_t> owned, int node, int rank)
    : owned_(std::move(owned)), node_(node), rank_(rank) {
  TESSERA_CHECK(node >= 1, "reduction: a node has {} ranks, expected 1 or more", node);
  TESSERA_CHECK(rank >= 0 && rank < size(), "reduction: rank {} is outside the {} ranks that add a gradient", rank,
                size());
}

std::vector<int> ReductionTree::relayed() const {
  std::vector<int> owners;
  for (int owner = 0; owner < size(); ++owner)
    if (relay(owner, node_of(rank_)) == rank_) owners.push_back(owner);
  return owners;
}

int ReductionTree::members_of(int node) const {
  return std::min(node_, size() - first_of(node));
}

std::int64_t ReductionTree::relayed_elements() const {
  std::int64_t elements = 0;
  for (const int owner : relayed()) elements += owned(owner);
  return elements;
}

ReductionTree::Bytes ReductionTree::bytes(quant::DType wire, quant::DType accumulator) const {
  const int own_node = node_of(rank_), members = members_of(own_node);
  Bytes bytes;
  if (members > 1) {
    const std::int64_t relayed = relayed_elements();
    bytes.within = bytes_of((members - 1) * relayed, wire);
    bytes.sums = bytes_of(relayed, accumulator);
  }
  // All nodes except the last have equal sizes.
  const int last = nodes() - 1;
  if (own_node != last) bytes.between += bytes_of(owned(rank_), type_of(last, wire, accumulator));
  const std::int64_t others = own_node == last ? last : last - 1;
  bytes.between += bytes_of(others * owned(rank_), type_of(0, wire, accumulator));
  return bytes;
}

ReductionTree tree_of(const layout::Layout& storage, const Cuts& cuts, int rank, int duplicate) {
  std::vector<std::int64_t> owned;
  for (int duplicate = 0; duplicate < cuts.duplicates; ++duplicate)
    for (const layout::LocalLayout& local : storage.ranks) owned.push_back(local.size);
  return {std::move(owned), cuts.node, rank + storage.size() * duplicate};
}

}  // namespace tessera::shard
