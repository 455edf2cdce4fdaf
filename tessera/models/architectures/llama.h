// Llama 2 and 3: a dense decoder without extensions.
#pragma once
#include "tessera/models/architecture.h"
#include "tessera/models/decoder/decoder_model.h"

namespace tessera::models {

class LlamaConfig final : public DecoderModelConfig {
 public:
  // `config` must not have options that Llama lacks (biases, norms of heads).
  explicit LlamaConfig(const DecoderConfig& config) : DecoderModelConfig(config) {}
  nlohmann::json to_json() const override;
};

// Throws InputError for biases.
ModelConfigPtr parse_llama(const Fields& fields);

inline constexpr Architecture kLlama{.model_type = "llama", .class_name = "LlamaForCausalLM", .parse = parse_llama};

}  // namespace tessera::models
