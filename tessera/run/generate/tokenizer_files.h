// The files of a tokenizer in the form of Hugging Face: found beside data, checkpoints and models, and copied to runs
// and exported folders.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tessera::run {

// Returns whether a folder holds a tokenizer.
bool holds_tokenizer(const std::filesystem::path& folder);

// Returns the folder with the tokenizer of a checkpoint or of a Hugging Face folder: that folder itself, its subfolder
// tokenizer/, or the tokenizer/ of the run that the checkpoint belongs to. Returns an empty path if none of them
// holds a tokenizer.
std::filesystem::path tokenizer_of(const std::filesystem::path& model_folder);
// Returns the folder of the first data prefix (or weight, which is skipped) that holds a tokenizer; else an empty path.
std::filesystem::path tokenizer_of_data(const std::vector<std::string>& blend);

// Copies the tokenizer's files, and generation_config.json, which names the tokens that end a text. Each file is
// complete or absent. Creates `target`. Throws Error if a file cannot be copied.
void copy_tokenizer(const std::filesystem::path& source, const std::filesystem::path& target);

// The tokens that begin and end a text.
struct TextTokens {
  std::optional<std::int64_t> begin;
  std::vector<std::int64_t> end;  // empty: unknown
};
// Reads them from generation_config.json, or else from config.json, or else from tokenizer_config.json and
// tokenizer.json of the folder. Throws InputError for a file that is not valid.
TextTokens text_tokens_of(const std::filesystem::path& folder);

}  // namespace tessera::run
