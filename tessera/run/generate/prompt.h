// The prompt of `tessera generate` as token ids, and the texts of token ids.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tessera/run/tokenizer/python_tokenizer.h"

namespace tessera::run {

// The flags of the prompt; exactly one is given.
struct PromptFlags {
  std::optional<std::string> text, file, ids;  // file: a path, or - for standard input
};
// Throws InputError unless exactly one of the flags is given.
void check_prompt_flags(const PromptFlags& flags);

// Returns the tokens of the prompt. folder: the tokenizer's folder; empty: no tokenizer is known. model_path: the path
// that the user gave, for messages. Throws InputError, which names the flag, for a file that cannot be read, for bytes
// that are not UTF-8, for text without a tokenizer or without a Python that can read it, and for ids that are not
// numbers.
std::vector<std::int64_t> prompt_tokens(const PromptFlags& flags, const std::filesystem::path& folder,
                                        const std::vector<std::string>& pythons, const std::string& model_path);
// Throws InputError for a prompt without tokens, and for ids outside the vocabulary.
void check_prompt(const std::vector<std::int64_t>& tokens, const PromptFlags& flags, std::int64_t vocab_size);

// Returns the name of the flag that is given.
std::string flag_of_prompt(const PromptFlags& flags);

}  // namespace tessera::run
