#include "tessera/predict/recompute_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/predict/dry_step.h"

namespace tessera::predict {
namespace {

using Policy = nn::Recompute;

// Returns the policies of an effort from 0 (no block recomputes) to twice the number of blocks (all blocks recompute
// fully).
std::vector<Policy> blocks_at(std::int64_t effort, std::int64_t blocks) {
  std::vector<Policy> policies;
  for (std::int64_t i = 0; i < blocks; ++i)
    policies.push_back(i + blocks < effort ? Policy::full : i < effort ? Policy::selective : Policy::none);
  return policies;
}

// A rank, and the slots of its tp group.
struct TpRank {
  int rank = 0;
  int number = 0;      // index of the rank in its tp group
  shard::Slots slots;  // slots of the ranks of this tp group
};

// Returns ranks of every kind: the ranks of one tp group of each shape. If no place is unused, returns the first ranks
// of the mesh, as many as the largest compute group has.
std::vector<TpRank> tp_ranks(const shard::RankLayout& layout) {
  const mesh::Mesh& mesh = layout.mesh;
  const mesh::Axes& compute = layout.domains.front().compute;
  std::vector<TpRank> ranks;
  if (!mesh.has_dead_places()) {
    const int tp = mesh.size(compute);
    int count = tp;
    for (const shard::Domain& domain : layout.domains) count = std::max(count, mesh.size(domain.compute));
    shard::Slots slots(static_cast<std::size_t>(tp));
    std::iota(slots.begin(), slots.end(), 0);
    for (int rank = 0; rank < count; ++rank) ranks.push_back({.rank = rank, .number = rank % tp, .slots = slots});
    return ranks;
  }
  std::set<shard::Slots> known;
  for (const std::vector<int>& group : mesh.groups(compute)) {
    shard::Slots slots;
    for (const int rank : group) slots.push_back(mesh.coordinate(rank, compute));
    if (!known.insert(slots).second) continue;
    for (std::size_t number = 0; number < group.size(); ++number)
      ranks.push_back({.rank = group[number], .number = static_cast<int>(number), .slots = slots});
  }
  return ranks;
}

}  // namespace

std::vector<RankKind> rank_kinds(const DryOptions& options) {
  const std::vector<shard::ParameterSpec> specs = dry_step(options).parameters;
  std::map<std::pair<int, std::vector<std::int64_t>>, int> kinds;
  for (const TpRank& tp_rank : tp_ranks(options.step.layout)) {
    const auto ranks = static_cast<int>(tp_rank.slots.size());
    std::vector<std::int64_t> sizes;
    for (const shard::ParameterSpec& spec : specs) {
      const auto of_slots = spec.compute_by_slots.find(tp_rank.slots);
      const layout::Layout& compute = of_slots == spec.compute_by_slots.end() ? spec.compute : of_slots->second;
      const shard::Domain& domain = options.step.layout.domains[static_cast<std::size_t>(spec.domain)];
      const int number =
          spec.domain == 0 ? tp_rank.number : options.step.layout.mesh.coordinate(tp_rank.rank, domain.compute);
      sizes.push_back(compute.ranks[static_cast<std::size_t>(number)].size);
    }
    if (options.step.sequence_parallel)
      sizes.push_back(options.step.split.part(options.sequences * options.seq_len, tp_rank.number, ranks).size());
    kinds.emplace(std::pair(ranks, std::move(sizes)), tp_rank.rank);
  }
  std::vector<RankKind> list;
  for (const auto& [key, rank] : kinds) list.push_back({.rank = rank, .group_ranks = key.first, .sizes = key.second});
  return list;
}

std::vector<int> kinds_of_ranks(const DryOptions& options) {
  std::vector<int> ranks;
  for (const RankKind& kind : rank_kinds(options)) ranks.push_back(kind.rank);
  return ranks;
}

std::vector<RankKind> busiest(const std::vector<RankKind>& kinds) {
  std::vector<RankKind> most;
  for (const RankKind& kind : kinds) {
    const auto exceeds = [&](const RankKind& other) {
      return other.group_ranks == kind.group_ranks && other.sizes != kind.sizes &&
             std::ranges::equal(kind.sizes, other.sizes, std::ranges::less_equal{});
    };
    if (std::ranges::none_of(kinds, exceeds)) most.push_back(kind);
  }
  return most;
}

std::int64_t max_stashed(DryOptions options, const std::vector<int>& ranks) {
  std::int64_t bytes = 0;
  for (const int rank : ranks) {
    options.rank = rank;
    bytes = std::max(bytes, peak_stashed(dry_step(options).microbatch));
  }
  return bytes;
}

std::vector<Policy> recompute_within(DryOptions options, std::int64_t blocks, std::int64_t budget) {
  const std::int64_t most = 2 * blocks;
  const std::vector<int> ranks = kinds_of_ranks(options);
  const auto kept_bytes = [&](std::int64_t effort) {
    options.step.recompute = nn::BlockRecompute(blocks_at(effort, blocks));
    return max_stashed(options, ranks);
  };
  const auto fits = [&](std::int64_t effort) { return kept_bytes(effort) <= budget; };
  if (!fits(most))
    throw InputError("got {} bytes, expected at least {}, the bytes that full recomputation keeps", budget,
                     kept_bytes(most));
  // A higher effort does not keep more bytes, so a binary search finds the lowest effort that fits.
  std::int64_t below = -1, enough = most;
  while (enough - below > 1) {
    const std::int64_t middle = (below + enough) / 2;
    (fits(middle) ? enough : below) = middle;
  }
  return blocks_at(enough, blocks);
}

std::string recompute_text(const std::vector<Policy>& blocks) {
  const auto selective = std::ranges::count(blocks, Policy::selective);
  const auto full = std::ranges::count(blocks, Policy::full);
  if (selective + full == 0) return "none";
  std::string text;
  if (selective > 0) text += fmt::format("{} selective", selective);
  if (full > 0) text += fmt::format("{}{} full", text.empty() ? "" : ", ", full);
  return text + fmt::format(" of {} blocks", blocks.size());
}

}  // namespace tessera::predict
