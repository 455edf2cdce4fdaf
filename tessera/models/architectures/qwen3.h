// Qwen3: a dense decoder that normalizes each head of q and of k before RoPE.
#pragma once
#include "tessera/models/architecture.h"
#include "tessera/models/decoder/decoder_model.h"

namespace tessera::models {

class Qwen3Config final : public DecoderModelConfig {
 public:
  // `config` must have has_head_norms and no biases.
  explicit Qwen3Config(const DecoderConfig& config) : DecoderModelConfig(config) {}
  nlohmann::json to_json() const override;
};

// Defaults of absent fields: num_key_value_heads 32, head_dim 128, max_position_embeddings 32768. Throws InputError for
// sliding windows and attention biases.
ModelConfigPtr parse_qwen3(const Fields& fields);

inline constexpr Architecture kQwen3{.model_type = "qwen3", .class_name = "Qwen3ForCausalLM", .parse = parse_qwen3};

}  // namespace tessera::models
