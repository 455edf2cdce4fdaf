#include "tessera/models/registry.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/json_file.h"
#include "tessera/models/architectures/dots1.h"
#include "tessera/models/architectures/llama.h"
#include "tessera/models/architectures/mixtral.h"
#include "tessera/models/architectures/qwen2.h"
#include "tessera/models/architectures/qwen3.h"
#include "tessera/models/architectures/qwen3_moe.h"
#include "tessera/models/unread_keys.h"

namespace tessera::models {
namespace {
using nlohmann::json;

constexpr std::array kArchitectures{kLlama, kQwen2, kQwen3, kMixtral, kQwen3Moe, kDots1};

std::string known_architectures() {
  std::vector<std::string> known;
  for (const Architecture& architecture : kArchitectures)
    known.push_back(fmt::format("\"{}\" ({})", architecture.model_type, architecture.class_name));
  return fmt::format("{}", fmt::join(known, ", "));
}

// Returns why a known type is not supported, or an empty string.
std::string rejection_reason(const json* type) {
  if (type && *type == "deepseek_v3")
    return "; deepseek_v3 has multi-head latent attention (MLA), which is not supported";
  return "";
}

bool names(const json& architectures, std::string_view class_name) {
  return std::ranges::any_of(architectures, [&](const json& name) { return name == class_name; });
}

const Architecture& architecture_of(const Fields& fields) {
  const json* type = fields.find("model_type");
  const json* listed = fields.find("architectures");
  if (listed && !listed->is_array()) fields.fail("architectures", "a list of names");
  if (!type && !listed) fields.fail("model_type", "one of " + known_architectures());
  const auto is_listed = [&](const Architecture& architecture) { return names(*listed, architecture.class_name); };
  if (!type && std::ranges::count_if(kArchitectures, is_listed) > 1)
    fields.fail("architectures", "one of " + known_architectures());
  for (const Architecture& architecture : kArchitectures) {
    if (type ? *type != architecture.model_type : !names(*listed, architecture.class_name)) continue;
    if (listed && !names(*listed, architecture.class_name))
      fields.fail("architectures",
                  fmt::format("[\"{}\"] for model_type \"{}\"", architecture.class_name, architecture.model_type));
    return architecture;
  }
  fields.fail(type ? "model_type" : "architectures", "one of " + known_architectures() + rejection_reason(type));
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

std::span<const Architecture> architectures() {
  return kArchitectures;
}

ModelConfigPtr parse_model_config(const json& config, const std::string& where) {
  if (!config.is_object()) throw InputError("{}: is {}, expected a JSON object", where, base::shown(config));
  if (config.contains("config") && config.contains("model") && config["model"].is_object())
    throw InputError(
        "{}: is the config.json of a run, expected the config.json of a model, such as the value of its key 'model'",
        where);
  const Fields fields(config, where);
  return architecture_of(fields).parse(fields);
}

ModelConfigPtr read_model_config(const std::filesystem::path& file) {
  return parse_model_config(base::read_json_file(file), file.string());
}

std::vector<std::string> model_config_warnings(const std::filesystem::path& file) {
  try {
    json config = base::read_json_file(file);
    if (config.is_object()) config.erase("quantization_config");  // the readers of folders handle this key
    const Fields fields(config, file.string());
    architecture_of(fields).parse(fields);
    return unread_key_warnings(config, fields.read(), file.string());
  } catch (const InputError&) {
    return {};  // the reader of the model reports the error
  }
}

std::filesystem::path find_model_config(const std::string& name, const std::filesystem::path& configs) {
  namespace fs = std::filesystem;
  if (name.empty()) throw InputError("--model: is empty, expected a name or a path to a config.json");
  std::vector<fs::path> candidates;
  if (name.find('/') == std::string::npos) candidates = {configs / (name + ".json"), configs / name / "config.json"};
  candidates.push_back(fs::path(name) / "config.json");
  candidates.emplace_back(name);
  std::error_code ignored;
  std::vector<fs::path> found;
  for (const fs::path& path : candidates)
    if (fs::is_regular_file(path, ignored)) found.push_back(path);
  for (const fs::path& other : found)
    if (!fs::equivalent(found.front(), other, ignored))
      throw InputError(
          "--model: '{}' matches {} and {}: expected an unambiguous name, or a path (./{} in the current folder)", name,
          found.front().string(), other.string(), name);
  if (!found.empty() && found.front().extension() == ".safetensors")
    throw InputError("--model: '{}' holds weights, expected a config.json (--init {} reads the weights beside it)",
                     name, found.front().has_parent_path() ? found.front().parent_path().string() : ".");
  if (!found.empty()) return found.front();
  if (fs::is_directory(name, ignored))
    throw InputError(
        "--model: '{}' is a folder without config.json, expected one with it, or a name under {} (there: {})", name,
        configs.string(), list_models(configs));
  throw InputError(
      "--model: '{}' not found: expected a config.json, a folder that holds one, or a name under {} (known names: {})",
      name, configs.string(), list_models(configs));
}

}  // namespace tessera::models
