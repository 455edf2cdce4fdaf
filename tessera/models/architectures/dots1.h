// The dots1 architecture: a Qwen3 decoder without biases of projections, whose layers with experts use the router of
// DeepSeek-V3.
#pragma once
#include "tessera/models/architecture.h"
#include "tessera/models/decoder/decoder_model.h"

namespace tessera::models {

class Dots1Config final : public DecoderModelConfig {
 public:
  // `config` must have has_head_norms, and no biases of projections. Its experts must have sigmoid scores and a router
  // bias. All layers after the first sparse layer must be sparse.
  explicit Dots1Config(const DecoderConfig& config) : DecoderModelConfig(config) {}
  nlohmann::json to_json() const override;
};

// Parses a model configuration with model_type dots1. The first first_k_dense_replace layers are dense. Throws
// InputError for: sliding windows; attention biases; an auxiliary loss; a score function other than sigmoid; fields of
// multi-head latent attention.
//
// n_routed_experts (or num_local_experts) and num_experts_per_tok must be present. Other absent fields have these
// defaults: num_key_value_heads 32, head_dim hidden_size / num_attention_heads, max_position_embeddings 2048,
// moe_intermediate_size 1408, first_k_dense_replace 0, n_shared_experts 0, n_group 1, topk_group 1, norm_topk_prob
// false, routed_scaling_factor 1.
ModelConfigPtr parse_dots1(const Fields& fields);

inline constexpr Architecture kDots1{.model_type = "dots1", .class_name = "Dots1ForCausalLM", .parse = parse_dots1};

}  // namespace tessera::models
