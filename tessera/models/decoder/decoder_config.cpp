#include "tessera/models/decoder/decoder_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>

#include "tessera/base/error.h"
#include "tessera/base/json_file.h"
#include "tessera/models/size_limits.h"

namespace tessera::models {
namespace {
using nlohmann::json;

void refuse_partial_rotation(const Fields& fields) {
  if (fields.number_or("partial_rotary_factor", 1) != 1)
    fields.fail("partial_rotary_factor", "1: RoPE rotates whole heads");
}

void refuse_unknown_arithmetic(const Fields& fields) {
  if (const json* act = fields.find("hidden_act"); act && *act != "silu") fields.fail("hidden_act", "\"silu\"");
  if (fields.number_or("attention_dropout", 0, true) != 0)
    fields.fail("attention_dropout",
                "0: attention dropout is not supported (--hidden-dropout and --embedding-dropout are)");
  refuse_partial_rotation(fields);
  if (fields.find("quantization_config"))
    fields.fail("quantization_config", "the field to be absent: quantized weights are not supported");
}

struct Rope {
  double theta;
  std::optional<RopeStretch> scaling;
};

// `rope` is null, or the object of "rope_scaling" or "rope_parameters".
std::optional<RopeStretch> parse_scaling(const Fields& rope) {
  const char* type_name = rope.find("rope_type") || !rope.find("type") ? "rope_type" : "type";
  const json* type = rope.find(type_name);
  if (const json* older = rope.find("type"); older && type && *older != *type)
    rope.fail("type", base::shown(*type) + ", as rope_type");
  if (type && *type == "default") return std::nullopt;
  if (!type || *type != "llama3") rope.fail(type_name, "\"llama3\" or \"default\"");
  RopeStretch scaling{.factor = rope.number("factor"),
                      .low_freq_factor = rope.number("low_freq_factor"),
                      .high_freq_factor = rope.number("high_freq_factor"),
                      .original_max_position_embeddings = rope.size("original_max_position_embeddings")};
  if (scaling.high_freq_factor <= scaling.low_freq_factor)
    rope.fail("high_freq_factor", "more than low_freq_factor " + std::to_string(scaling.low_freq_factor));
  return scaling;
}

// Returns whether the object has options besides theta. Such an object needs a rope type.
bool has_more_than_theta(const json& rope) {
  for (const auto& [name, value] : rope.items())
    if (!value.is_null() && name != "rope_theta" && name != "partial_rotary_factor") return true;
  return false;
}

// A file may describe RoPE in three places. If the places disagree, the file is refused, since one of them must be
// wrong.
Rope parse_rope(const Fields& fields, double default_theta) {
  std::optional<double> theta;
  const auto read_theta = [&theta](const Fields& from) {
    if (!from.find("rope_theta")) return false;
    const double own = from.number("rope_theta");
    if (theta && *theta != own) from.fail("rope_theta", fmt::format("{}, as elsewhere in the file", *theta));
    theta = own;
    return true;
  };
  read_theta(fields);
  std::optional<RopeStretch> scaling;
  const char* typed = nullptr;  // name of the object that has the type
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    const json* object = fields.object(name);
    if (!object) continue;
    const Fields inner(*object, fields.where(), std::string(name) + ".");
    refuse_partial_rotation(inner);
    const bool has_theta = read_theta(inner);
    if (has_theta && !has_more_than_theta(*object)) continue;
    const std::optional<RopeStretch> own = parse_scaling(inner);
    if (typed && own != scaling) fields.fail(name, std::string("the same as in ") + typed);
    typed = name;
    scaling = own;
  }
  return {.theta = theta.value_or(default_theta), .scaling = scaling};
}

std::int64_t quotient_head_dim(const Fields& fields, std::int64_t hidden, std::int64_t heads) {
  if (!fields.find("head_dim") && hidden % heads != 0)
    fields.fail("head_dim", "a value, since num_attention_heads " + std::to_string(heads) +
                                " does not divide hidden_size " + std::to_string(hidden));
  return hidden / heads;
}

std::int64_t kv_heads(const Fields& fields, const DecoderDefaults& defaults, std::int64_t heads) {
  if (fields.is_null("num_key_value_heads")) return heads;
  return fields.size_or("num_key_value_heads", defaults.num_kv_heads.value_or(heads));
}

std::int64_t head_dim(const Fields& fields, const DecoderDefaults& defaults, const DecoderConfig& c) {
  if (fields.find("head_dim")) return fields.size("head_dim", {.most = kMaxWidth});
  return defaults.head_dim ? *defaults.head_dim : quotient_head_dim(fields, c.hidden_size, c.num_heads);
}

double estimate_params(const DecoderConfig& c) {
  const double attention = 2.0 * c.hidden_size * c.head_dim * (c.num_heads + c.num_kv_heads);
  const double dense = 3.0 * c.hidden_size * c.intermediate_size;
  const double shared = c.experts ? 3.0 * c.hidden_size * c.experts->shared_width : 0.0;
  const double experts =
      c.experts ? shared + c.experts->count * (3.0 * c.hidden_size * c.experts->width + c.hidden_size) : 0.0;
  const double layer = attention + dense + experts + 2.0 * c.hidden_size;
  return c.num_layers * layer + 2.0 * c.vocab_size * c.hidden_size + c.hidden_size;
}

}  // namespace

DecoderConfig parse_decoder(const Fields& fields, const DecoderDefaults& defaults) {
  refuse_unknown_arithmetic(fields);
  DecoderConfig c;
  c.vocab_size = fields.size("vocab_size", {.most = kMaxVocabulary});
  c.hidden_size = fields.size("hidden_size", {.most = kMaxWidth});
  c.intermediate_size = fields.size("intermediate_size", {.most = kMaxWidth});
  c.num_layers = fields.size("num_hidden_layers", {.most = kMaxLayers});
  c.num_heads = fields.size("num_attention_heads", {.most = kMaxWidth});
  c.num_kv_heads = kv_heads(fields, defaults, c.num_heads);
  c.head_dim = head_dim(fields, defaults, c);
  c.max_position_embeddings = fields.size_or("max_position_embeddings", defaults.max_position_embeddings);
  const Rope rope = parse_rope(fields, defaults.rope_theta);
  c.rope_theta = rope.theta;
  c.rope_scaling = rope.scaling;
  c.rms_norm_eps = fields.number_or("rms_norm_eps", defaults.rms_norm_eps);
  c.initializer_range = fields.number_or("initializer_range", 0.02, true);
  c.tie_word_embeddings = fields.flag_or("tie_word_embeddings", false);
  if (c.num_heads % c.num_kv_heads != 0)
    fields.fail("num_key_value_heads", "a divisor of num_attention_heads " + std::to_string(c.num_heads));
  if (c.head_dim % 2 != 0)
    fields.fail("head_dim", "an even number (RoPE rotates pairs; head_dim is " + std::to_string(c.head_dim) + ")");
  if (c.num_heads * c.head_dim > kMaxWidth)
    fields.fail("num_attention_heads", fmt::format("at most {}, since a head has {} elements and all heads at most {}",
                                                   kMaxWidth / c.head_dim, c.head_dim, kMaxWidth));
  check_size(c, fields);
  return c;
}

void check_size(const DecoderConfig& c, const Fields& fields) {
  if (c.experts && c.experts->count > kMaxExperts)
    throw InputError("{}: the model would have {} experts in a layer, expected at most {}", fields.where(),
                     c.experts->count, kMaxExperts);
  if (c.experts && c.experts->count * c.num_layers > kMaxAllExperts)
    throw InputError("{}: the model would have {} experts in each of {} layers, expected at most {} in all",
                     fields.where(), c.experts->count, c.num_layers, kMaxAllExperts);
  if (estimate_params(c) > kMaxParams)
    throw InputError("{}: the model would have {:.3g} parameters, expected at most {:.0g}", fields.where(),
                     estimate_params(c), kMaxParams);
}

double activations_per_token(const DecoderConfig& c) {
  const auto number = [](std::int64_t size) { return static_cast<double>(size); };
  const double residual = 4 * number(c.hidden_size);
  const double attention = 4 * number(std::max(c.num_heads, c.num_kv_heads) * c.head_dim);
  double feed_forward = 4 * number(c.intermediate_size);
  if (c.experts)
    feed_forward = std::max(feed_forward, 4 * number(c.experts->per_token) * number(c.experts->width + c.hidden_size) +
                                              4 * number(c.experts->shared_width));
  return number(c.num_layers) * (residual + attention + feed_forward) + number(c.vocab_size);
}

void refuse_sliding_windows(const Fields& fields) {
  fields.require_false("use_sliding_window", "sliding windows are not supported");
  const json* layers = fields.find("layer_types");
  if (!layers) return;
  const auto expected = "\"full_attention\" for each layer: sliding windows are not supported";
  if (!layers->is_array()) fields.fail("layer_types", expected);
  for (const json& layer : *layers)
    if (layer != "full_attention") fields.fail("layer_types", expected);
  if (static_cast<std::int64_t>(layers->size()) != fields.size("num_hidden_layers"))
    fields.fail("layer_types", "num_hidden_layers entries");
}

json decoder_json(const DecoderConfig& c) {
  json out{{"vocab_size", c.vocab_size},
           {"hidden_size", c.hidden_size},
           {"intermediate_size", c.intermediate_size},
           {"num_hidden_layers", c.num_layers},
           {"num_attention_heads", c.num_heads},
           {"num_key_value_heads", c.num_kv_heads},
           {"head_dim", c.head_dim},
           {"max_position_embeddings", c.max_position_embeddings},
           {"rope_theta", c.rope_theta},
           {"rope_scaling", nullptr},
           {"rms_norm_eps", c.rms_norm_eps},
           {"initializer_range", c.initializer_range},
           {"tie_word_embeddings", c.tie_word_embeddings},
           {"hidden_act", "silu"},
           {"attention_dropout", 0.0}};
  if (c.rope_scaling)
    out["rope_scaling"] = {{"rope_type", "llama3"},
                           {"factor", c.rope_scaling->factor},
                           {"low_freq_factor", c.rope_scaling->low_freq_factor},
                           {"high_freq_factor", c.rope_scaling->high_freq_factor},
                           {"original_max_position_embeddings", c.rope_scaling->original_max_position_embeddings}};
  return out;
}

}  // namespace tessera::models
