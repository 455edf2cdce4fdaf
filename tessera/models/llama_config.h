// The sizes and options of a Llama model, as a Hugging Face config.json gives them. No tensor library here.
#pragma once
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace tessera::models {

// "rope_type": "llama3": stretches the low frequencies of RoPE for contexts longer than the original one.
struct LlamaRopeScaling {
  double factor = 8.0, low_freq_factor = 1.0, high_freq_factor = 4.0;
  std::int64_t original_max_position_embeddings = 8192;
  bool operator==(const LlamaRopeScaling&) const = default;
};

// Values are those of the logical model, nothing is padded. Only two relations must hold: num_kv_heads divides
// num_heads (the definition of grouped-query attention), and head_dim is even (RoPE turns pairs).
struct LlamaConfig {
  std::int64_t vocab_size = 0, hidden_size = 0, intermediate_size = 0;  // intermediate: of the feed-forward block
  std::int64_t num_layers = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0;
  std::int64_t max_position_embeddings = 2048;  // longest sequence
  double rope_theta = 10000.0;
  std::optional<LlamaRopeScaling> rope_scaling;
  double rms_norm_eps = 1e-6;
  double initializer_range = 0.02;   // standard deviation of the initial matrices
  bool tie_word_embeddings = false;  // the output layer is the embedding
  bool operator==(const LlamaConfig&) const = default;
};

// From the JSON of a config.json. `where` names it in errors. Absent or null optional fields take Hugging Face's
// defaults (num_key_value_heads: num_attention_heads; head_dim: hidden_size / num_attention_heads; rms_norm_eps 1e-6;
// rope_theta 10000; max_position_embeddings 2048; initializer_range 0.02; tie_word_embeddings false). RoPE is read from
// "rope_parameters" too, where newer files keep it. Fields that do not change the model's arithmetic are ignored.
// InputError naming file, field, value and expectation: another architecture, a missing field, a wrong type or range,
// an option this model does not have (biases, dropout, another activation, another kind of RoPE, quantized weights).
LlamaConfig parse_llama_config(const nlohmann::json& config, const std::string& where);
LlamaConfig read_llama_config(const std::filesystem::path& file);

// The same in Hugging Face's form: parse_llama_config(to_json(c)) == c.
nlohmann::json to_json(const LlamaConfig& config);

// The config.json that `--model NAME` means: CONFIGS/NAME.json or CONFIGS/NAME/config.json for a plain name, else a
// path to such a file or to a folder that holds a config.json. InputError lists where it looked and the names there
// are.
std::filesystem::path find_model_config(const std::string& name, const std::filesystem::path& configs);

// Number of parameters of the logical model; tied embeddings count once.
std::int64_t num_params(const LlamaConfig& config);

}  // namespace tessera::models
