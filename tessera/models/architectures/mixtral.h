// Mixtral: a Llama whose feed-forward parts all consist of experts.
#pragma once
#include "tessera/models/architecture.h"
#include "tessera/models/decoder/decoder_model.h"

namespace tessera::models {

class MixtralConfig final : public DecoderModelConfig {
 public:
  // `config` must have experts in every layer and no options that Llama lacks.
  explicit MixtralConfig(const DecoderConfig& config) : DecoderModelConfig(config) {}
  nlohmann::json to_json() const override;

 protected:
  ExpertNames expert_names() const override;
};

// Defaults of absent fields: num_key_value_heads 8, max_position_embeddings 131072, rope_theta 1e6, rms_norm_eps 1e-5,
// num_local_experts 8, num_experts_per_tok 2, router_aux_loss_coef 0.001. Throws InputError for biases, sliding
// windows, router noise and the fields of refuse_other_experts.
ModelConfigPtr parse_mixtral(const Fields& fields);

inline constexpr Architecture kMixtral{
    .model_type = "mixtral", .class_name = "MixtralForCausalLM", .parse = parse_mixtral};

}  // namespace tessera::models
