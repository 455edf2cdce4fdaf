// dots1: the routing of DeepSeek-V3 in a Qwen3 without biases.
#pragma once
#include "tessera/models/architecture.h"
#include "tessera/models/decoder_model.h"

namespace tessera::models {

class Dots1Config final : public DecoderModelConfig {
 public:
  // `config` must have has_head_norms, experts with sigmoid scores and a router bias, and no biases of projections. The
  // layers after the first sparse layer must be sparse.
  explicit Dots1Config(const DecoderConfig& config) : DecoderModelConfig(config) {}
  nlohmann::json to_json() const override;
};

// The first first_k_dense_replace layers are dense. Defaults of absent fields: num_key_value_heads 32, head_dim
// hidden_size / num_attention_heads, max_position_embeddings 2048, moe_intermediate_size 1408, first_k_dense_replace 0,
// n_shared_experts 0, n_group 1, topk_group 1, norm_topk_prob false, routed_scaling_factor 1. n_routed_experts (or
// num_local_experts) and num_experts_per_tok must be present. Throws InputError for sliding windows, attention biases,
// an auxiliary loss, another score than sigmoid, and fields of multi-head latent attention.
ModelConfigPtr parse_dots1(const Fields& fields);

inline constexpr Architecture kDots1{.model_type = "dots1", .class_name = "Dots1ForCausalLM", .parse = parse_dots1};

}  // namespace tessera::models
