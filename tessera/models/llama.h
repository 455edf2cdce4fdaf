// Llama 2 and 3: a dense decoder as it is.
#pragma once
#include "tessera/models/architecture.h"
#include "tessera/models/decoder_model.h"

namespace tessera::models {

class LlamaConfig final : public DecoderModelConfig {
 public:
  // config: without options that Llama does not have (bias, norms of heads).
  explicit LlamaConfig(const DecoderConfig& config) : DecoderModelConfig(config) {}
  nlohmann::json to_json() const override;
};

// Refuses biases (InputError).
ModelConfigPtr parse_llama(const Fields& fields);

inline constexpr Architecture kLlama{.model_type = "llama", .class_name = "LlamaForCausalLM", .parse = parse_llama};

}  // namespace tessera::models
