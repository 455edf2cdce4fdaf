// Text as tokens and back, with a Hugging Face tokenizer. A separate process runs the Python package `tokenizers`, so
// that every tokenizer of Hugging Face gives the same ids as in Python.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tessera::run {

class PythonTokenizer {
 public:
  // file: a tokenizer.json. pythons: interpreters to try in this order, names on the path or files.
  PythonTokenizer(std::filesystem::path file, std::vector<std::string> pythons);

  // Returns the ids of a text, with the special tokens that the tokenizer adds to a text. The text is valid UTF-8.
  // Returns nullopt if no interpreter has the package. Throws InputError for a tokenizer.json that the package refuses.
  std::optional<std::vector<std::int64_t>> encode(const std::string& text) const;
  // Returns the texts of lists of ids, special tokens included. Returns nullopt and throws as encode does.
  std::optional<std::vector<std::string>> decode(const std::vector<std::vector<std::int64_t>>& lists) const;

 private:
  std::filesystem::path file_;
  std::vector<std::string> pythons_;
};

// Returns the interpreters to try: $TESSERA_PYTHON alone if it is set, else `own`, the tool's own Python, and python3.
std::vector<std::string> pythons_to_try(const std::optional<std::string>& chosen, const std::string& own);

}  // namespace tessera::run
