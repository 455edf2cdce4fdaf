#include "tessera/run/recompute_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "tessera/base/error.h"
#include "tessera/predict/dry_step.h"
#include "tessera/run/config/byte_size.h"
#include "tessera/run/trainer_options.h"

namespace tessera::run {
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

std::vector<Policy> smallest_effort(const TrainConfig& config, const models::ModelConfig& model, std::int64_t budget) {
  const std::int64_t blocks = model.sizes().num_layers, most = 2 * blocks;
  predict::DryOptions options = dry_options(config, model, {});
  const std::vector<int> ranks = kinds_of_ranks(options);
  const auto kept_bytes = [&](std::int64_t effort) {
    options.recompute = nn::BlockRecompute(blocks_at(effort, blocks));
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

}  // namespace

std::vector<int> kinds_of_ranks(const predict::DryOptions& options) {
  const shard::RankLayout& layout = options.layout;
  const int tp = layout.mesh.size(layout.domains.front().compute);
  int ranks_of_group = tp;  // number of ranks whose parts may differ
  for (const shard::Domain& domain : layout.domains)
    ranks_of_group = std::max(ranks_of_group, layout.mesh.size(domain.compute));
  const std::vector<shard::ParameterSpec> specs = dry_step(options).parameters;
  std::map<std::vector<std::int64_t>, int> kinds;
  for (int rank = 0; rank < ranks_of_group; ++rank) {
    std::vector<std::int64_t> sizes;
    for (const shard::ParameterSpec& spec : specs) {
      const shard::Domain& domain = layout.domains[static_cast<std::size_t>(spec.domain)];
      const int compute = layout.mesh.coordinate(rank, domain.compute);
      sizes.push_back(spec.compute.ranks[static_cast<std::size_t>(compute)].size);
    }
    if (options.sequence_parallel)
      sizes.push_back(options.split.part(options.sequences * options.seq_len, rank % tp, tp).size());
    kinds.emplace(std::move(sizes), rank);
  }
  std::vector<int> ranks;
  for (const auto& [sizes, rank] : kinds) ranks.push_back(rank);
  return ranks;
}

std::int64_t max_stashed(predict::DryOptions options, const std::vector<int>& ranks) {
  std::int64_t bytes = 0;
  for (const int rank : ranks) {
    options.rank = rank;
    bytes = std::max(bytes, peak_stashed(dry_step(options).microbatch));
  }
  return bytes;
}

std::vector<Policy> recompute_choice(const TrainConfig& config, const models::ModelConfig& model) {
  const auto every = [&](Policy policy) {
    return std::vector<Policy>(static_cast<std::size_t>(model.sizes().num_layers), policy);
  };
  switch (config.recompute) {
    case RecomputeSetting::none:
      return every(Policy::none);
    case RecomputeSetting::selective:
      return every(Policy::selective);
    case RecomputeSetting::full:
      return every(Policy::full);
    case RecomputeSetting::automatic:
      break;
  }
  try {
    return smallest_effort(config, model, parse_byte_size(config.activation_budget));
  } catch (const InputError& error) {
    throw InputError("--activation-budget: {}", error.what());
  }
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

}  // namespace tessera::run
