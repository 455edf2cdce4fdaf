// The sizes and options of a decoder: embedding, blocks, norm, output layer. A block consists of attention and a
// feed-forward part, each with an RMS norm before it. The feed-forward part is SwiGLU or, in a sparse layer, experts.
// Each architecture of the registry parses its config.json into a DecoderConfig.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>

#include "tessera/models/config_fields.h"
#include "tessera/models/decoder/experts_config.h"

namespace tessera::models {

// The options of "rope_type": "llama3". This scaling stretches the low frequencies of RoPE, for contexts longer than
// that of the original model.
struct RopeStretch {
  double factor = 8.0, low_freq_factor = 1.0, high_freq_factor = 4.0;
  std::int64_t original_max_position_embeddings = 8192;
  bool operator==(const RopeStretch&) const = default;
};

// The values of the logical model, without padding. Only two relations must hold: num_kv_heads divides num_heads (the
// definition of grouped-query attention), and head_dim is even (RoPE rotates pairs).
struct DecoderConfig {
  // intermediate_size is the width of a feed-forward part.
  std::int64_t vocab_size = 0, hidden_size = 0, intermediate_size = 0;
  std::int64_t num_layers = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0;
  std::int64_t max_position_embeddings = 2048;  // longest sequence
  double rope_theta = 10000.0;
  std::optional<RopeStretch> rope_scaling;
  double rms_norm_eps = 1e-6;
  double initializer_range = 0.02;   // standard deviation of the initial matrices
  bool tie_word_embeddings = false;  // whether the output layer uses the embedding's weight
  bool has_qkv_bias = false;         // whether the projections to q, k and v have a bias
  bool has_head_norms = false;       // whether each head of q and k is normalized before RoPE
  std::optional<ExpertsConfig> experts;
  // Returns whether the feed-forward part of a layer consists of experts.
  bool is_sparse(std::int64_t layer) const { return experts && experts->is_sparse(layer); }
  bool operator==(const DecoderConfig&) const = default;
};

// Defaults of absent fields that differ between architectures. Other optional fields have the same default in all
// architectures: a num_key_value_heads of null means num_attention_heads, initializer_range is 0.02, and
// tie_word_embeddings is false.
struct DecoderDefaults {
  std::int64_t max_position_embeddings = 2048;
  std::optional<std::int64_t> num_kv_heads;  // nullopt: num_attention_heads
  std::optional<std::int64_t> head_dim;      // nullopt: hidden_size / num_attention_heads
  double rope_theta = 10000.0;
  double rms_norm_eps = 1e-6;
};
// Parses the fields that all decoders share. RoPE is read from "rope_scaling" and "rope_theta", or from
// "rope_parameters" in newer files. Refuses options that no architecture supports: attention dropout, another
// activation, another kind of RoPE, quantized weights. Refuses sizes above those of size_limits.h. Ignores fields that
// do not change the model's arithmetic. Throws InputError, see Fields.
DecoderConfig parse_decoder(const Fields& fields, const DecoderDefaults& defaults);
// Throws InputError for a model with more parameters or experts than size_limits.h allows. The message contains the
// number.
void check_size(const DecoderConfig& config, const Fields& fields);
// Returns ModelSizes::activations_per_token.
double activations_per_token(const DecoderConfig& config);
// Throws InputError if the file enables sliding windows.
void refuse_sliding_windows(const Fields& fields);

// Returns the configuration in Hugging Face's form, with all fields that parse_decoder reads.
nlohmann::json decoder_json(const DecoderConfig& config);

}  // namespace tessera::models
