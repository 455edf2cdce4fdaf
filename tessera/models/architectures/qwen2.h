// Qwen2 and Qwen2.5: a dense decoder with biases on q, k and v.
#pragma once
#include "tessera/models/architecture.h"
#include "tessera/models/decoder/decoder_model.h"

namespace tessera::models {

class Qwen2Config final : public DecoderModelConfig {
 public:
  // `config` must have has_qkv_bias and no norms of heads.
  explicit Qwen2Config(const DecoderConfig& config) : DecoderModelConfig(config) {}
  nlohmann::json to_json() const override;
};

// Defaults of absent fields: num_key_value_heads 32, max_position_embeddings 32768. Throws InputError for sliding
// windows.
ModelConfigPtr parse_qwen2(const Fields& fields);

inline constexpr Architecture kQwen2{.model_type = "qwen2", .class_name = "Qwen2ForCausalLM", .parse = parse_qwen2};

}  // namespace tessera::models
