#include "tessera/run/recompute_choice.h"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/models/decoder_model.h"
#include "tessera/predict/llama_trace.h"
#include "tessera/run/config/byte_size.h"

namespace tessera::run {
namespace {

using Policy = nn::Recompute;

// From 0 (every block keeps all) to twice the blocks (each one computes all again).
std::vector<Policy> blocks_at(std::int64_t effort, std::int64_t blocks) {
  std::vector<Policy> policies;
  for (std::int64_t i = 0; i < blocks; ++i)
    policies.push_back(i + blocks < effort ? Policy::full : i < effort ? Policy::selective : Policy::none);
  return policies;
}

std::int64_t kept_bytes(const TrainConfig& config, const models::ModelConfig& model,
                        const std::vector<Policy>& blocks) {
  std::int64_t most = 0;
  for (int rank = 0; rank < config.tp; ++rank)
    most = std::max(most, peak_stashed(predict::llama_trace(models::decoder_of(model),
                                                            {.tp_size = static_cast<int>(config.tp),
                                                             .tp_rank = rank,
                                                             .sequence_parallel = config.sequence_parallel,
                                                             .recompute = nn::BlockRecompute(blocks),
                                                             .tokens = config.micro_batch * config.seq_len,
                                                             .dtype = config.dtype})));
  return most;
}

std::vector<Policy> smallest_effort(const TrainConfig& config, const models::ModelConfig& model, std::int64_t budget) {
  const std::int64_t blocks = model.sizes().num_layers, most = 2 * blocks;
  const auto fits = [&](std::int64_t effort) { return kept_bytes(config, model, blocks_at(effort, blocks)) <= budget; };
  if (!fits(most))
    throw InputError("got {} bytes, expected at least {}: what full recomputation keeps", budget,
                     kept_bytes(config, model, blocks_at(most, blocks)));
  std::int64_t below = -1, enough = most;  // more effort never keeps more
  while (enough - below > 1) {
    const std::int64_t middle = (below + enough) / 2;
    (fits(middle) ? enough : below) = middle;
  }
  return blocks_at(enough, blocks);
}

}  // namespace

std::vector<Policy> recompute_choice(const TrainConfig& config, const models::ModelConfig& model) {
  const auto every = [&](Policy policy) {
    return std::vector<Policy>(static_cast<std::size_t>(model.sizes().num_layers), policy);
  };
  switch (config.recompute) {
    case Recompute::none:
      return every(Policy::none);
    case Recompute::selective:
      return every(Policy::selective);
    case Recompute::full:
      return every(Policy::full);
    case Recompute::automatic:
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
