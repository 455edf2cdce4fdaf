// Converts text to token ids and back with a Hugging Face tokenizer. A separate process runs the Python package
// `tokenizers`, so the ids are equal to those in Python for every tokenizer.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tessera/hub/tokenizer/begin_ids.h"

namespace tessera::hub {

class PythonTokenizer {
 public:
  // file: a tokenizer.json. pythons: interpreters to try, in this order; each is a name in PATH or a file.
  PythonTokenizer(std::filesystem::path file, std::vector<std::string> pythons);

  // Returns the ids of a text, including special tokens that the tokenizer adds. If `begin` is set, its ids replace the
  // ids that the tokenizer adds before the text. The text must be valid UTF-8. Returns nullopt if no interpreter has
  // the package `tokenizers`. Throws InputError if the package refuses the tokenizer.json.
  std::optional<std::vector<std::int64_t>> encode(const std::string& text, const BeginIds& begin = {}) const;
  // Returns the text of each list of ids, including special tokens. Returns nullopt and throws errors in the same cases
  // as encode.
  std::optional<std::vector<std::string>> decode(const std::vector<std::vector<std::int64_t>>& lists) const;

 private:
  std::filesystem::path file_;
  std::vector<std::string> pythons_;
};

// Returns the interpreters to try, in order. `chosen` is $TESSERA_PYTHON; if it is set, it is the only interpreter.
// Otherwise the interpreters are `own`, the Python of the installation, and python3.
std::vector<std::string> pythons_to_try(const std::optional<std::string>& chosen, const std::string& own);

}  // namespace tessera::hub
