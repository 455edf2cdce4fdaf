// The sizes and options of a dense decoder: embedding, blocks of attention and SwiGLU with RMS norms in front of both,
// norm, output layer. Llama, Qwen2 and Qwen3 are such; each reads its own config.json into one.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>

#include "tessera/models/config_fields.h"

namespace tessera::models {

// "rope_type": "llama3": stretches the low frequencies of RoPE for contexts longer than the original one.
struct RopeStretch {
  double factor = 8.0, low_freq_factor = 1.0, high_freq_factor = 4.0;
  std::int64_t original_max_position_embeddings = 8192;
  bool operator==(const RopeStretch&) const = default;
};

// Values are those of the logical model, nothing is padded. Only two relations must hold: num_kv_heads divides
// num_heads (the definition of grouped-query attention), and head_dim is even (RoPE turns pairs).
struct DecoderConfig {
  std::int64_t vocab_size = 0, hidden_size = 0, intermediate_size = 0;  // intermediate: of the feed-forward block
  std::int64_t num_layers = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0;
  std::int64_t max_position_embeddings = 2048;  // longest sequence
  double rope_theta = 10000.0;
  std::optional<RopeStretch> rope_scaling;
  double rms_norm_eps = 1e-6;
  double initializer_range = 0.02;   // standard deviation of the initial matrices
  bool tie_word_embeddings = false;  // the output layer is the embedding
  bool has_qkv_bias = false;         // the projections to q, k and v have a bias
  bool has_head_norms = false;       // each head of q and of k is normed before RoPE, by weights that heads share
  bool operator==(const DecoderConfig&) const = default;
};

// What an absent field means; architectures differ in these. Other optional fields mean the same in all of them:
// num_key_value_heads null: num_attention_heads; rope_theta 10000; rms_norm_eps 1e-6; initializer_range 0.02;
// tie_word_embeddings false.
struct DecoderDefaults {
  std::int64_t max_position_embeddings = 2048;
  std::optional<std::int64_t> num_kv_heads;  // none: num_attention_heads
  std::optional<std::int64_t> head_dim;      // none: hidden_size / num_attention_heads
};
// What all decoders read alike. RoPE is read from "rope_scaling" and "rope_theta", or from "rope_parameters", where
// newer files keep it. Refuses what none of them has: dropout, another activation, another kind of RoPE, quantized
// weights. Fields that do not change the model's arithmetic are ignored. InputError as of Fields.
DecoderConfig parse_decoder(const Fields& fields, const DecoderDefaults& defaults);
// For architectures with sliding windows: refuses them.
void refuse_sliding_windows(const Fields& fields);

// The same in Hugging Face's form, with all that parse_decoder reads.
nlohmann::json decoder_json(const DecoderConfig& config);

}  // namespace tessera::models
