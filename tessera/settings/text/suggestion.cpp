#include "tessera/settings/text/suggestion.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "tessera/base/text/similar_name.h"

namespace tessera::settings {
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

// Returns the candidate with the given name of a setting, or "".
std::string candidate_of(std::string_view setting, const std::vector<std::string>& candidates) {
  const auto found = std::ranges::find(candidates, setting, as_setting);
  return found == candidates.end() ? "" : *found;
}

// Returns the candidate with the meaning that `name` has in other programs. `name` may have a typing error, if it is
// long. A name of another program counts only if it is nearer than `nearest`.
std::string candidate_of_other_name(std::string_view name, const std::vector<std::string>& candidates, int nearest) {
  constexpr std::size_t letters_per_error = 5;
  std::vector<std::string> others;
  for (const auto& [other, own] : kOtherNames)
    if (!candidate_of(own, candidates).empty()) others.emplace_back(other);
  const auto other = base::similar_name(as_setting(name), others);
  if (!other || other->distance >= nearest ||
      other->name.size() < letters_per_error * static_cast<std::size_t>(other->distance))
    return "";
  const auto* const meaning =
      std::ranges::find(kOtherNames, other->name, &std::pair<std::string_view, std::string_view>::first);
  return candidate_of(meaning->second, candidates);
}

}  // namespace

std::string suggestion(std::string_view name, const std::vector<std::string>& candidates) {
  const auto nearest = base::similar_name(name, candidates);
  std::string found = candidate_of_other_name(name, candidates, nearest ? nearest->distance : 100);
  if (found.empty() && nearest) found = nearest->name;
  return found.empty() ? "" : fmt::format(": did you mean '{}'?", found);
}

}  // namespace tessera::settings
