#include "tessera/models/unread_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "tessera/base/text/printable.h"
#include "tessera/base/text/similar_name.h"

namespace tessera::models {
namespace {

// Names that other programs use, and those of Hugging Face.
constexpr auto kOtherKeys = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"d_model", "hidden_size"},
    {"dim", "hidden_size"},
    {"n_embd", "hidden_size"},
    {"hidden_dim", "hidden_size"},
    {"embedding_size", "hidden_size"},
    {"d_ff", "intermediate_size"},
    {"ffn_dim", "intermediate_size"},
    {"ffn_hidden_size", "intermediate_size"},
    {"n_inner", "intermediate_size"},
    {"n_layer", "num_hidden_layers"},
    {"n_layers", "num_hidden_layers"},
    {"num_layers", "num_hidden_layers"},
    {"n_head", "num_attention_heads"},
    {"n_heads", "num_attention_heads"},
    {"num_heads", "num_attention_heads"},
    {"n_kv_heads", "num_key_value_heads"},
    {"num_kv_heads", "num_key_value_heads"},
    {"num_query_groups", "num_key_value_heads"},
    {"multi_query_group_num", "num_key_value_heads"},
    {"d_head", "head_dim"},
    {"head_size", "head_dim"},
    {"kv_channels", "head_dim"},
    {"max_seq_len", "max_position_embeddings"},
    {"seq_length", "max_position_embeddings"},
    {"context_length", "max_position_embeddings"},
    {"n_positions", "max_position_embeddings"},
    {"n_ctx", "max_position_embeddings"},
    {"padded_vocab_size", "vocab_size"},
    {"n_vocab", "vocab_size"},
    {"norm_eps", "rms_norm_eps"},
    {"norm_epsilon", "rms_norm_eps"},
    {"rms_norm_epsilon", "rms_norm_eps"},
    {"layer_norm_eps", "rms_norm_eps"},
    {"layer_norm_epsilon", "rms_norm_eps"},
    {"layernorm_epsilon", "rms_norm_eps"},
    {"rope_base", "rope_theta"},
    {"rotary_base", "rope_theta"},
    {"rotary_emb_base", "rope_theta"},
    {"rotary_pct", "partial_rotary_factor"},
    {"rotary_percent", "partial_rotary_factor"},
    {"tie_embeddings", "tie_word_embeddings"},
    {"weight_tying", "tie_word_embeddings"},
    {"init_std", "initializer_range"},
    {"activation_function", "hidden_act"},
    {"hidden_activation", "hidden_act"},
    {"moe_top_k", "num_experts_per_tok"},
    {"top_k_experts", "num_experts_per_tok"},
});

bool is_absent(const nlohmann::json& config, const std::string& key) {
  const auto at = config.find(key);
  return at == config.end() || at->is_null();
}

// Returns the candidate that was meant by `key`, or "".
std::string meant_by(const std::string& key, const std::vector<std::string>& candidates) {
  const auto* const other = std::ranges::find(kOtherKeys, key, &std::pair<std::string_view, std::string_view>::first);
  if (other != kOtherKeys.end() && std::ranges::find(candidates, other->second) != candidates.end())
    return std::string(other->second);
  const auto similar = base::similar_name(key, candidates);
  return similar ? similar->name : "";
}

}  // namespace

std::vector<std::string> unread_key_warnings(const nlohmann::json& config, const std::set<std::string>& read,
                                             const std::string& where) {
  std::vector<std::string> absent, warnings;
  for (const std::string& key : read)
    if (is_absent(config, key)) absent.push_back(key);
  for (const auto& [key, value] : config.items()) {
    if (read.contains(key) || value.is_null()) continue;
    if (const std::string meant = meant_by(key, absent); !meant.empty())
      warnings.push_back(fmt::format("{}: the key '{}' is not read: did you mean '{}', which is absent?", where,
                                     base::printable(key), meant));
  }
  return warnings;
}

}  // namespace tessera::models
