#include "tessera/models/llama_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/json_file.h"

namespace tessera::models {
namespace {
using nlohmann::json;

constexpr std::int64_t kLargestSize = (std::int64_t{1} << 31) - 1;
constexpr double kMostParams = 1e18;  // stays inside int64

// An object of the file whose fields are read with checks. A field that is null counts as absent.
class Fields {
 public:
  Fields(const json& object, std::string where, std::string path = "")
      : object_(object), where_(std::move(where)), path_(std::move(path)) {}

  const json* find(const char* name) const {
    const auto at = object_.find(name);
    return at == object_.end() || at->is_null() ? nullptr : &*at;
  }
  [[noreturn]] void fail(const char* name, const std::string& expected) const {
    const auto at = object_.find(name);
    throw InputError("{}: field '{}{}' is {}, expected {}", where_, path_, name,
                     at == object_.end() ? "missing" : base::shown(*at), expected);
  }
  std::int64_t size(const char* name) const {
    const json* value = find(name);
    const auto expected = "an integer from 1 to 2147483647";
    if (!value || !value->is_number_integer()) fail(name, expected);
    const bool fits = value->is_number_unsigned() ? value->get<std::uint64_t>() <= std::uint64_t{kLargestSize}
                                                  : value->get<std::int64_t>() <= kLargestSize;
    if (!fits || value->get<std::int64_t>() < 1) fail(name, expected);
    return value->get<std::int64_t>();
  }
  std::int64_t size_or(const char* name, std::int64_t fallback) const { return find(name) ? size(name) : fallback; }
  double number(const char* name, bool zero_allowed = false) const {
    const json* value = find(name);
    const auto expected = zero_allowed ? "a number, 0 or more" : "a number above 0";
    if (!value || !value->is_number()) fail(name, expected);
    const double number = value->get<double>();
    if (!std::isfinite(number) || number < 0 || (number == 0 && !zero_allowed)) fail(name, expected);
    return number;
  }
  double number_or(const char* name, double fallback, bool zero_allowed = false) const {
    return find(name) ? number(name, zero_allowed) : fallback;
  }
  bool flag_or(const char* name, bool fallback) const {
    const json* value = find(name);
    if (value && !value->is_boolean()) fail(name, "true or false");
    return value ? value->get<bool>() : fallback;
  }

 private:
  const json& object_;
  std::string where_, path_;
};

void require_llama(const Fields& fields) {
  constexpr auto wanted = "a Llama model (\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"])";
  const json* architectures = fields.find("architectures");
  const json* type = fields.find("model_type");
  if (architectures) {
    if (!architectures->is_array() ||
        std::find(architectures->begin(), architectures->end(), "LlamaForCausalLM") == architectures->end())
      fields.fail("architectures", wanted);
  }
  if ((type && *type != "llama") || (!type && !architectures)) fields.fail("model_type", wanted);
}

void require_supported(const Fields& fields) {
  if (fields.flag_or("attention_bias", false)) fields.fail("attention_bias", "false: biases are not supported");
  if (fields.flag_or("mlp_bias", false)) fields.fail("mlp_bias", "false: biases are not supported");
  if (const json* act = fields.find("hidden_act"); act && *act != "silu") fields.fail("hidden_act", "\"silu\"");
  if (fields.number_or("attention_dropout", 0, true) != 0) fields.fail("attention_dropout", "0: there is no dropout");
  if (fields.find("quantization_config"))
    fields.fail("quantization_config", "no such field: weights are not quantized");
}

struct Rope {
  double theta;
  std::optional<LlamaRopeScaling> scaling;
};

// `rope` is null, or the object of "rope_scaling" or "rope_parameters".
std::optional<LlamaRopeScaling> parse_scaling(const Fields& rope) {
  const char* type_name = rope.find("rope_type") || !rope.find("type") ? "rope_type" : "type";
  const json* type = rope.find(type_name);
  if (type && *type == "default") return std::nullopt;
  if (!type || *type != "llama3") rope.fail(type_name, "\"llama3\" or \"default\"");
  LlamaRopeScaling scaling{.factor = rope.number("factor"),
                           .low_freq_factor = rope.number("low_freq_factor"),
                           .high_freq_factor = rope.number("high_freq_factor"),
                           .original_max_position_embeddings = rope.size("original_max_position_embeddings")};
  if (scaling.high_freq_factor <= scaling.low_freq_factor)
    rope.fail("high_freq_factor", "more than low_freq_factor " + std::to_string(scaling.low_freq_factor));
  return scaling;
}

Rope parse_rope(const Fields& fields, const std::string& where) {
  Rope rope{.theta = fields.number_or("rope_theta", 10000.0), .scaling = std::nullopt};
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    const json* object = fields.find(name);
    if (!object) continue;
    if (!object->is_object()) fields.fail(name, "an object or null");
    const Fields inner(*object, where, std::string(name) + ".");
    rope.theta = inner.number_or("rope_theta", rope.theta);
    const bool only_theta = !inner.find("rope_type") && !inner.find("type") && inner.find("rope_theta");
    const auto scaling = only_theta ? std::nullopt : parse_scaling(inner);
    if (rope.scaling && scaling && *rope.scaling != *scaling) fields.fail(name, "the same as in rope_scaling");
    if (scaling) rope.scaling = scaling;
  }
  return rope;
}

std::int64_t default_head_dim(const Fields& fields, std::int64_t hidden, std::int64_t heads) {
  if (!fields.find("head_dim") && hidden % heads != 0)
    fields.fail("head_dim", "to be given when num_attention_heads " + std::to_string(heads) +
                                " does not divide hidden_size " + std::to_string(hidden));
  return hidden / heads;
}

double estimate_params(const LlamaConfig& c) {
  const double attention = 2.0 * c.hidden_size * c.head_dim * (c.num_heads + c.num_kv_heads);
  const double layer = attention + 3.0 * c.hidden_size * c.intermediate_size + 2.0 * c.hidden_size;
  return c.num_layers * layer + 2.0 * c.vocab_size * c.hidden_size + c.hidden_size;
}

std::string list_models(const std::filesystem::path& configs) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator it(configs, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".json") names.push_back(it->path().stem().string());
    if (std::filesystem::exists(it->path() / "config.json")) names.push_back(it->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

LlamaConfig parse_llama_config(const json& config, const std::string& where) {
  if (!config.is_object()) throw InputError("{}: is {}, expected a JSON object", where, base::shown(config));
  const Fields fields(config, where);
  require_llama(fields);
  require_supported(fields);
  LlamaConfig c;
  c.vocab_size = fields.size("vocab_size");
  c.hidden_size = fields.size("hidden_size");
  c.intermediate_size = fields.size("intermediate_size");
  c.num_layers = fields.size("num_hidden_layers");
  c.num_heads = fields.size("num_attention_heads");
  c.num_kv_heads = fields.size_or("num_key_value_heads", c.num_heads);
  c.head_dim = fields.find("head_dim") ? fields.size("head_dim") : default_head_dim(fields, c.hidden_size, c.num_heads);
  c.max_position_embeddings = fields.size_or("max_position_embeddings", 2048);
  const Rope rope = parse_rope(fields, where);
  c.rope_theta = rope.theta;
  c.rope_scaling = rope.scaling;
  c.rms_norm_eps = fields.number_or("rms_norm_eps", 1e-6);
  c.initializer_range = fields.number_or("initializer_range", 0.02, true);
  c.tie_word_embeddings = fields.flag_or("tie_word_embeddings", false);
  if (c.num_heads % c.num_kv_heads != 0)
    fields.fail("num_key_value_heads", "a divisor of num_attention_heads " + std::to_string(c.num_heads));
  if (c.head_dim % 2 != 0)
    fields.fail("head_dim", "an even number (RoPE turns pairs; it is " + std::to_string(c.head_dim) + ")");
  if (estimate_params(c) > kMostParams)
    throw InputError("{}: the model would have {:.3g} parameters, expected at most {:.0g}", where, estimate_params(c),
                     kMostParams);
  return c;
}

LlamaConfig read_llama_config(const std::filesystem::path& file) {
  return parse_llama_config(base::read_json_file(file), file.string());
}

json to_json(const LlamaConfig& c) {
  json out{{"architectures", {"LlamaForCausalLM"}},
           {"model_type", "llama"},
           {"vocab_size", c.vocab_size},
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
           {"attention_bias", false},
           {"attention_dropout", 0.0},
           {"mlp_bias", false}};
  if (c.rope_scaling)
    out["rope_scaling"] = {{"rope_type", "llama3"},
                           {"factor", c.rope_scaling->factor},
                           {"low_freq_factor", c.rope_scaling->low_freq_factor},
                           {"high_freq_factor", c.rope_scaling->high_freq_factor},
                           {"original_max_position_embeddings", c.rope_scaling->original_max_position_embeddings}};
  return out;
}

std::filesystem::path find_model_config(const std::string& name, const std::filesystem::path& configs) {
  namespace fs = std::filesystem;
  if (name.empty()) throw InputError("--model: is empty, expected a name or a path to a config.json");
  std::vector<fs::path> candidates;
  if (name.find('/') == std::string::npos) candidates = {configs / (name + ".json"), configs / name / "config.json"};
  candidates.push_back(fs::path(name) / "config.json");
  candidates.emplace_back(name);
  std::error_code ignored;
  for (const fs::path& path : candidates)
    if (fs::exists(path, ignored) && !fs::is_directory(path, ignored)) return path;
  throw InputError(
      "--model: '{}' not found: expected a config.json, a folder that holds one, or a name under {} (there: {})", name,
      configs.string(), list_models(configs));
}

std::int64_t num_params(const LlamaConfig& c) {
  const std::int64_t attention = 2 * c.hidden_size * c.head_dim * (c.num_heads + c.num_kv_heads);
  const std::int64_t layer = attention + 3 * c.hidden_size * c.intermediate_size + 2 * c.hidden_size;
  const std::int64_t embeddings = (c.tie_word_embeddings ? 1 : 2) * c.vocab_size * c.hidden_size;
  return c.num_layers * layer + embeddings + c.hidden_size;
}

}  // namespace tessera::models
