// Helpers of the readers' tests: files in a temporary folder, and small valid inputs.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "tests/base/files.h"

namespace tessera::fuzz {

// Writes the whole file. Does not create folders.
inline void write_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

// Returns the config.json of a small model of each architecture.
inline std::vector<std::string> model_configs() {
  const nlohmann::json sizes = {{"vocab_size", 131},
                                {"hidden_size", 32},
                                {"intermediate_size", 77},
                                {"num_hidden_layers", 3},
                                {"num_attention_heads", 8},
                                {"num_key_value_heads", 4},
                                {"max_position_embeddings", 64},
                                {"rms_norm_eps", 1e-6},
                                {"initializer_range", 0.02},
                                {"tie_word_embeddings", false},
                                {"hidden_act", "silu"}};
  std::vector<std::string> configs;
  const auto add = [&](const nlohmann::json& own) {
    nlohmann::json config = sizes;
    config.update(own);
    configs.push_back(config.dump());
  };
  add({{"model_type", "llama"},
       {"architectures", {"LlamaForCausalLM"}},
       {"rope_theta", 10000.0},
       {"rope_scaling",
        {{"rope_type", "llama3"},
         {"factor", 8.0},
         {"low_freq_factor", 1.0},
         {"high_freq_factor", 4.0},
         {"original_max_position_embeddings", 32}}}});
  add({{"model_type", "qwen2"}, {"use_sliding_window", false}, {"layer_types", nlohmann::json(3, "full_attention")}});
  add({{"model_type", "qwen3"}, {"head_dim", 4}, {"rope_parameters", {{"rope_theta", 1e6}}}});
  add({{"model_type", "mixtral"}, {"num_local_experts", 8}, {"num_experts_per_tok", 2}, {"sliding_window", nullptr}});
  add({{"model_type", "qwen3_moe"},
       {"num_experts", 8},
       {"num_experts_per_tok", 2},
       {"moe_intermediate_size", 24},
       {"decoder_sparse_step", 1},
       {"mlp_only_layers", {1}}});
  add({{"model_type", "dots1"},
       {"n_routed_experts", 12},
       {"num_experts_per_tok", 2},
       {"n_group", 3},
       {"topk_group", 2},
       {"n_shared_experts", 1},
       {"moe_intermediate_size", 24},
       {"first_k_dense_replace", 1},
       {"routed_scaling_factor", 2.5}});
  return configs;
}

}  // namespace tessera::fuzz
