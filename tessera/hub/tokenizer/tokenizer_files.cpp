#include "tessera/hub/tokenizer/tokenizer_files.h"
#include "tessera/base/atomic_file.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/json_file.h"
#include "tessera/checkpoint/io.h"
#include "tessera/data/blend.h"
#include "tessera/hub/run_directory.h"

namespace tessera::hub {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::array kVocabularies{"tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt"};
constexpr const char *kTokenizerConfig = "tokenizer_config.json", *kGenerationConfig = "generation_config.json";
constexpr std::array kOtherFiles{kTokenizerConfig, "special_tokens_map.json", "added_tokens.json", "merges.txt",
                                 "chat_template.jinja"};

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

json object_in(const fs::path& path) {
  if (!is_file(path)) return json::object();
  json value = base::read_json_file(path);
  if (!value.is_object()) throw InputError("{}: got {}, expected an object", path.string(), base::shown(value));
  return value;
}

// Returns whether the value is an integer that fits into 64 bits.
bool is_id(const json& value) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
  return value.is_number_integer() && (!value.is_number_unsigned() || value.get<std::uint64_t>() <= kMost);
}

std::string text_in(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

// Adds the ids of a field: absent, null, an id or a list of ids.
std::vector<std::int64_t> ids_in(const json& object, const char* field, const fs::path& path) {
  std::vector<std::int64_t> ids;
  const auto found = object.find(field);
  if (found == object.end() || found->is_null()) return ids;
  for (const json& id : found->is_array() ? *found : json::array({*found})) {
    if (!is_id(id))
      throw InputError("{}: {}: got {}, expected the id of a token or a list of ids", path.string(), field,
                       base::shown(*found));
    ids.push_back(id.get<std::int64_t>());
  }
  return ids;
}

// tokenizer_config.json holds a special token as its text, or as an object with the text.
std::string token_in(const json& config, const char* field) {
  const auto found = config.find(field);
  if (found == config.end()) return "";
  if (found->is_string()) return found->get<std::string>();
  return found->is_object() ? text_in(*found, "content") : "";
}

std::optional<std::int64_t> id_of(const std::string& token, const json& added_tokens) {
  if (token.empty() || !added_tokens.is_array()) return std::nullopt;
  for (const json& added : added_tokens)
    if (added.is_object() && text_in(added, "content") == token && added.contains("id") && is_id(added["id"]))
      return added["id"].get<std::int64_t>();
  return std::nullopt;
}

TextTokens tokens_of_tokenizer(const fs::path& folder) {
  TextTokens tokens;
  const json config = object_in(folder / kTokenizerConfig);
  const std::string begin = token_in(config, "bos_token"), end = token_in(config, "eos_token");
  if (begin.empty() && end.empty()) return tokens;
  const json added = object_in(folder / "tokenizer.json").value("added_tokens", json());
  tokens.begin = id_of(begin, added);
  if (const auto id = id_of(end, added)) tokens.end = {*id};
  return tokens;
}

}  // namespace

bool holds_tokenizer(const fs::path& folder) {
  return std::ranges::any_of(kVocabularies, [&](const char* name) { return is_file(folder / name); });
}

fs::path tokenizer_of(const fs::path& model_folder) {
  std::error_code ignored;
  const fs::path folder = fs::weakly_canonical(model_folder, ignored);
  const fs::path run = folder.parent_path().filename() == "checkpoints" ? folder.parent_path().parent_path() : folder;
  for (const fs::path& place : {folder, folder / kTokenizerFolder, run / kTokenizerFolder})
    if (holds_tokenizer(place)) return place;
  return {};
}

std::vector<std::string> prefixes_in(const std::vector<std::string>& blend) {
  std::vector<std::string> prefixes;
  for (const data::WeightedPrefix& set : data::parse_blend(blend, "--data")) prefixes.push_back(set.prefix);
  return prefixes;
}

fs::path folder_of_prefix(const std::string& prefix) {
  const fs::path path(prefix);
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

fs::path tokenizer_beside(const std::string& prefix) {
  const fs::path folder = folder_of_prefix(prefix);
  return is_file(prefix + ".idx") && holds_tokenizer(folder) ? folder : fs::path();
}

fs::path tokenizer_of_data(const std::vector<std::string>& blend) {
  for (const std::string& prefix : prefixes_in(blend))
    if (fs::path folder = tokenizer_beside(prefix); !folder.empty()) return folder;
  return {};
}

TextTokens text_tokens_of(const fs::path& folder) {
  for (const char* name : {kGenerationConfig, "config.json"}) {
    const fs::path path = folder / name;
    const json object = object_in(path);
    const std::vector<std::int64_t> begin = ids_in(object, "bos_token_id", path);
    TextTokens tokens{.begin = std::nullopt, .end = ids_in(object, "eos_token_id", path)};
    if (!begin.empty()) tokens.begin = begin.front();
    if (!tokens.end.empty()) return tokens;
  }
  return tokens_of_tokenizer(folder);
}

nlohmann::ordered_json generation_config(const TextTokens& tokens) {
  nlohmann::ordered_json config = {{"bos_token_id", nullptr}, {"eos_token_id", nullptr}};
  if (tokens.begin) config["bos_token_id"] = *tokens.begin;
  if (tokens.end.size() == 1) config["eos_token_id"] = tokens.end.front();
  if (tokens.end.size() > 1) config["eos_token_id"] = tokens.end;
  return config;
}

void copy_tokenizer(const fs::path& source, const fs::path& target) {
  std::error_code code;
  fs::create_directories(target, code);
  if (code) throw Error("{}: cannot create the folder: {}", target.string(), code.message());
  const auto copy = [&](const char* name) {
    if (is_file(source / name)) base::write_file_atomically(target / name, checkpoint::read_text(source / name));
  };
  std::ranges::for_each(kOtherFiles, copy);
  copy(kGenerationConfig);
  // Without this file, transformers takes the tokenizer class of the model's architecture, which may split text in
  // another way than tokenizer.json.
  if (is_file(source / "tokenizer.json") && !is_file(source / kTokenizerConfig))
    base::write_json_atomically(target / kTokenizerConfig, {{"tokenizer_class", "PreTrainedTokenizerFast"}});
  if (const TextTokens tokens = text_tokens_of(source); !is_file(source / kGenerationConfig) && !tokens.end.empty())
    base::write_json_atomically(target / kGenerationConfig, generation_config(tokens));
  // The vocabulary is copied last. Therefore a folder with a vocabulary has a complete tokenizer.
  std::for_each(kVocabularies.rbegin(), kVocabularies.rend(), copy);
}

}  // namespace tessera::hub
