// Finds the files of Hugging Face tokenizers beside data, checkpoints and models, and copies them to runs and exported
// folders.
#pragma once
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace tessera::hub {

// Returns whether a folder holds a tokenizer.
bool holds_tokenizer(const std::filesystem::path& folder);

// Returns the folder with the tokenizer of a checkpoint or of a Hugging Face folder. This is `model_folder` itself, its
// subfolder tokenizer/, or the folder tokenizer/ of the run that contains the checkpoint. Returns an empty path without
// a tokenizer.
std::filesystem::path tokenizer_of(const std::filesystem::path& model_folder);
// Returns the prefixes of the data sets in `blend`, and the folder of the files of a prefix.
std::vector<std::string> prefixes_in(const std::vector<std::string>& blend);
std::filesystem::path folder_of_prefix(const std::string& prefix);
// Returns the folder of a data set if it contains a tokenizer, otherwise an empty path.
std::filesystem::path tokenizer_beside(const std::string& prefix);
// Returns the folder of the first data set in `blend` whose folder contains a tokenizer, or an empty path.
std::filesystem::path tokenizer_of_data(const std::vector<std::string>& blend);

// The tokens that begin and end a text.
struct TextTokens {
  std::optional<std::int64_t> begin;
  std::vector<std::int64_t> end;  // empty: unknown
};
// Reads TextTokens from the folder: from generation_config.json if possible, otherwise from config.json, otherwise from
// tokenizer_config.json and tokenizer.json. Throws InputError for a file that is not valid.
TextTokens text_tokens_of(const std::filesystem::path& folder);

// Returns the tokens with the keys of Hugging Face: bos_token_id, and eos_token_id as an id or a list. Unknown tokens
// are null.
nlohmann::ordered_json generation_config(const TextTokens& tokens);

// Copies the tokenizer's files and generation_config.json to `target`, which is created. If `source` has no
// generation_config.json but the end token is known, writes a generation_config.json with the tokens. If `source` has a
// tokenizer.json but no tokenizer_config.json, writes a tokenizer_config.json. Each file is complete or absent. Throws
// Error if a file cannot be copied.
void copy_tokenizer(const std::filesystem::path& source, const std::filesystem::path& target);

}  // namespace tessera::hub
