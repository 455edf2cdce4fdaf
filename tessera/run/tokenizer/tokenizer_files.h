// The files of a tokenizer in the form of Hugging Face: found beside data, checkpoints and models, and copied to runs
// and exported folders.
#pragma once
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace tessera::run {

// Returns whether a folder holds a tokenizer.
bool holds_tokenizer(const std::filesystem::path& folder);

// Returns the folder with the tokenizer of a checkpoint or of a Hugging Face folder: that folder itself, its subfolder
// tokenizer/, or the tokenizer/ of the run that the checkpoint belongs to. Returns an empty path without a tokenizer.
std::filesystem::path tokenizer_of(const std::filesystem::path& model_folder);
// Returns the folder of the first data set of a blend that holds a tokenizer, or an empty path.
std::filesystem::path tokenizer_of_data(const std::vector<std::string>& blend);

// The tokens that begin and end a text.
struct TextTokens {
  std::optional<std::int64_t> begin;
  std::vector<std::int64_t> end;  // empty: unknown
};
// Reads these tokens from generation_config.json, or else from config.json, or else from tokenizer_config.json and
// tokenizer.json of the folder. Throws InputError for a file that is not valid.
TextTokens text_tokens_of(const std::filesystem::path& folder);

// Returns the tokens in the form of Hugging Face: bos_token_id, and eos_token_id as an id or a list; null: unknown.
nlohmann::ordered_json generation_config(const TextTokens& tokens);

// Copies the tokenizer's files and generation_config.json. If the source lacks that file and the token that ends a text
// is known, writes a generation_config.json with the tokens. If a tokenizer.json has no tokenizer_config.json, writes
// one. Each file is complete or absent. Creates `target`. Throws Error if a file cannot be copied.
void copy_tokenizer(const std::filesystem::path& source, const std::filesystem::path& target);

}  // namespace tessera::run
