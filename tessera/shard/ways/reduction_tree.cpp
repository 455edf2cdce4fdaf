#include "tessera/shard/ways/reduction_tree.h"

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

namespace {

// Returns the elements that each rank of each duplicate owns.
std::vector<std::int64_t> owned_elements(const layout::Layout& storage, const Cuts& cuts) {
  std::vector<std::int64_t> owned;
  for (int duplicate = 0; duplicate < cuts.duplicates; ++duplicate)
    for (const layout::LocalLayout& local : storage.ranks) owned.push_back(local.size);
  return owned;
}

}  // namespace

ReductionTree tree_of(const layout::Layout& storage, const Cuts& cuts, int rank, int duplicate) {
  return {owned_elements(storage, cuts), cuts.node, rank + storage.size() * duplicate};
}

ReductionBytes::ReductionBytes(std::vector<std::int64_t> owned, int node)
    : tree_(std::move(owned), node, 0), stored_(tree_.size()) {
  const int members = tree_.members_of(0), last = tree_.nodes() - 1, last_members = tree_.members_of(last);
  relayed_.resize(static_cast<std::size_t>(members)), relayed_last_.resize(static_cast<std::size_t>(last_members));
  for (int owner = 0; owner < tree_.size(); ++owner) {
    relayed_[static_cast<std::size_t>(tree_.relay(owner, 0))] += tree_.owned(owner);
    relayed_last_[static_cast<std::size_t>(tree_.relay(owner, last) - tree_.first_of(last))] += tree_.owned(owner);
  }
}

ReductionBytes::ReductionBytes(const layout::Layout& storage, const Cuts& cuts)
    : ReductionBytes(owned_elements(storage, cuts), cuts.node) {
  stored_ = storage.size();
}

ReductionBytes::Bytes ReductionBytes::of(int rank, int duplicate, quant::DType wire, quant::DType accumulator) const {
  rank += stored_ * duplicate;
  const int node = tree_.node_of(rank), members = tree_.members_of(node), last = tree_.nodes() - 1;
  Bytes bytes;
  if (members > 1) {
    const std::vector<std::int64_t>& relayed = node == last ? relayed_last_ : relayed_;
    const std::int64_t elements = relayed[static_cast<std::size_t>(rank - tree_.first_of(node))];
    bytes.within = bytes_of((members - 1) * elements, wire);
    bytes.sums = bytes_of(elements, accumulator);
  }
  // All nodes except the last have equal sizes.
  if (node != last) bytes.between += bytes_of(tree_.owned(rank), tree_.type_of(last, wire, accumulator));
  const std::int64_t others = node == last ? last : last - 1;
  bytes.between += bytes_of(others * tree_.owned(rank), tree_.type_of(0, wire, accumulator));
  return bytes;
}

}  // namespace tessera::shard
