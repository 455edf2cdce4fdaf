// Qwen3-MoE: a Qwen3 in which some or all feed-forward parts consist of experts.
#pragma once
#include "tessera/models/architecture.h"
#include "tessera/models/decoder/decoder_model.h"

namespace tessera::models {

class Qwen3MoeConfig final : public DecoderModelConfig {
 public:
  // `config` must have has_head_norms, experts and no biases.
  explicit Qwen3MoeConfig(const DecoderConfig& config) : DecoderModelConfig(config) {}
  nlohmann::json to_json() const override;
};

// Layer i has experts if it is not in mlp_only_layers and decoder_sparse_step divides i + 1. Defaults of absent fields:
// num_key_value_heads 4, head_dim hidden_size / num_attention_heads, max_position_embeddings 32768, num_experts 128,
// num_experts_per_tok 8, moe_intermediate_size 768, norm_topk_prob false, decoder_sparse_step 1, router_aux_loss_coef
// 0.001. Throws InputError for sliding windows, attention biases and the fields of refuse_other_experts.
ModelConfigPtr parse_qwen3_moe(const Fields& fields);

inline constexpr Architecture kQwen3Moe{
    .model_type = "qwen3_moe", .class_name = "Qwen3MoeForCausalLM", .parse = parse_qwen3_moe};

}  // namespace tessera::models
