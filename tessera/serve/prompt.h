// Converts the prompt of `tessera generate` to token ids.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tessera/hub/tokenizer/python_tokenizer.h"

namespace tessera::serve {

// The flags that set the prompt. Exactly one of them is given.
struct PromptFlags {
  std::optional<std::string> text, file, ids;  // file: a path, or - for standard input
};
// Throws InputError unless exactly one of the flags is given.
void check_prompt_flags(const PromptFlags& flags);

// How the text of a prompt becomes tokens.
struct PromptTokenizer {
  std::filesystem::path folder;      // folder of the tokenizer; empty without a tokenizer
  hub::BeginIds begin;               // the begin tokens of the model's training data
  std::vector<std::string> pythons;  // Python interpreters (python_tokenizer.h)
  std::string model_path;            // the model's path on the command line, for messages
};
// Returns the tokens of the prompt. Throws InputError for: a file that cannot be read; bytes that are not UTF-8; ids
// that are not numbers; text without a tokenizer, or without a Python that can load it. The message names the flag.
std::vector<std::int64_t> prompt_tokens(const PromptFlags& flags, const PromptTokenizer& tokenizer);
// Throws InputError for a prompt without tokens, and for ids outside the vocabulary.
void check_prompt(const std::vector<std::int64_t>& tokens, const PromptFlags& flags, std::int64_t vocab_size);

// Returns the name of the flag that is given.
std::string flag_of_prompt(const PromptFlags& flags);

}  // namespace tessera::serve
