#include "tessera/run/config/suggestion.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace tessera::run {
namespace {

// Names that other training programs use, and ours.
constexpr auto kOtherNames = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"learning_rate", "lr"},
    {"max_lr", "lr"},
    {"max_steps", "steps"},
    {"num_steps", "steps"},
    {"train_iters", "steps"},
    {"epochs", "steps"},
    {"num_train_epochs", "steps"},
    {"batch_size", "global_batch"},
    {"global_batch_size", "global_batch"},
    {"micro_batch_size", "micro_batch"},
    {"per_device_train_batch_size", "micro_batch"},
    {"sequence_length", "seq_len"},
    {"max_seq_len", "seq_len"},
    {"max_length", "seq_len"},
    {"context_length", "seq_len"},
    {"warmup", "warmup_steps"},
    {"lr_warmup_iters", "warmup_steps"},
    {"lr_scheduler_type", "lr_schedule"},
    {"lr_decay_style", "lr_schedule"},
    {"adam_beta1", "beta1"},
    {"adam_beta2", "beta2"},
    {"adam_eps", "eps"},
    {"adam_epsilon", "eps"},
    {"grad_clip", "clip"},
    {"clip_grad", "clip"},
    {"max_grad_norm", "clip"},
    {"bf16", "dtype"},
    {"fp8", "gemm_format"},
    {"precision", "dtype"},
    {"torch_dtype", "dtype"},
    {"tensor_parallel", "tp"},
    {"tensor_parallel_size", "tp"},
    {"tensor_model_parallel_size", "tp"},
    {"fsdp", "gtp"},
    {"data_parallel", "dp"},
    {"expert_parallel", "ep"},
    {"expert_model_parallel_size", "ep"},
    {"nproc_per_node", "ranks"},
    {"num_gpus", "ranks"},
    {"world_size", "ranks"},
    {"output_dir", "out"},
    {"output", "out"},
    {"save_interval", "save_every"},
    {"save_steps", "save_every"},
    {"eval_interval", "eval_every"},
    {"eval_steps", "eval_every"},
    {"load", "resume"},
    {"checkpoint", "resume"},
    {"train_data", "data"},
    {"data_path", "data"},
    {"valid_data", "valid"},
    {"dropout", "hidden_dropout"},
    {"activation_checkpointing", "recompute"},
    {"gradient_checkpointing", "recompute"},
});

// Returns the name of a flag or of a setting as a setting: "--seq-len" is "seq_len".
std::string as_setting(std::string_view name) {
  std::string setting(name.substr(std::min(name.find_first_not_of('-'), name.size())));
  std::ranges::replace(setting, '-', '_');
  return setting;
}

// Returns the candidate with the meaning that `name` has in other programs, or "".
std::string candidate_of_other_name(std::string_view name, const std::vector<std::string>& candidates) {
  const auto other =
      std::ranges::find(kOtherNames, as_setting(name), &std::pair<std::string_view, std::string_view>::first);
  if (other == kOtherNames.end()) return "";
  const auto found = std::ranges::find(candidates, other->second, as_setting);
  return found == candidates.end() ? "" : *found;
}

// Returns the number of insertions, deletions, replacements and swaps of neighbours between two short names.
int edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<int>> cost(a.size() + 1, std::vector<int>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i)
    for (std::size_t j = 0; j <= b.size(); ++j) {
      int& best = cost[i][j];
      if (i == 0 || j == 0) {
        best = static_cast<int>(i + j);
        continue;
      }
      best = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, cost[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) best = std::min(best, cost[i - 2][j - 2] + 1);
    }
  return cost.back().back();
}

}  // namespace

std::string suggestion(std::string_view name, const std::vector<std::string>& candidates) {
  int best = name.size() > 8 ? 4 : 3;
  std::string nearest = candidate_of_other_name(name, candidates);
  if (!nearest.empty()) return fmt::format(": did you mean '{}'?", nearest);
  for (const std::string& candidate : candidates) {
    // Names of different lengths have at least this distance. A long name is not compared.
    const std::size_t difference = std::max(name.size(), candidate.size()) - std::min(name.size(), candidate.size());
    if (difference >= static_cast<std::size_t>(best)) continue;
    if (const int distance = edit_distance(name, candidate); distance < best) {
      best = distance;
      nearest = candidate;
    }
  }
  return nearest.empty() ? "" : fmt::format(": did you mean '{}'?", nearest);
}

}  // namespace tessera::run
