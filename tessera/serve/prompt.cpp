#include "tessera/serve/prompt.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/base/text/printable.h"

namespace tessera::serve {
namespace {

std::string read_all(std::istream& from) {
  return {std::istreambuf_iterator<char>(from), std::istreambuf_iterator<char>()};
}

std::string text_of(const PromptFlags& flags) {
  if (flags.text) return *flags.text;
  if (*flags.file == "-") return read_all(std::cin);
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(*flags.file, ignored) && !std::filesystem::is_fifo(*flags.file, ignored) &&
      !std::filesystem::is_character_file(*flags.file, ignored))
    throw InputError("--prompt-file: '{}' is not a file, expected a text file, or - for standard input", *flags.file);
  std::ifstream file(*flags.file, std::ios::binary);
  if (!file) throw InputError("--prompt-file: '{}' cannot be read, expected a text file", *flags.file);
  return read_all(file);
}

std::int64_t id_of(std::string_view word, const std::string& all) {
  std::int64_t id = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
  if (error != std::errc{} || end != word.data() + word.size() || word.empty())
    throw InputError("--prompt-ids: got '{}' in '{}', expected token ids separated by commas, such as 5,17,3", word,
                     all);
  return id;
}

std::vector<std::int64_t> ids_of(const std::string& text) {
  std::vector<std::int64_t> ids;
  if (text.empty()) return ids;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    ids.push_back(id_of(std::string_view(text).substr(begin, end - begin), text));
    begin = end + 1;
  }
  return ids;
}

}  // namespace

std::string flag_of_prompt(const PromptFlags& flags) {
  return flags.text ? "--prompt" : flags.file ? "--prompt-file" : "--prompt-ids";
}

void check_prompt_flags(const PromptFlags& flags) {
  const int given = int{flags.text.has_value()} + int{flags.file.has_value()} + int{flags.ids.has_value()};
  if (given == 0)
    throw InputError("--prompt is missing: expected --prompt TEXT, --prompt-file FILE or --prompt-ids ID,...");
  if (given > 1) throw InputError("--prompt, --prompt-file, --prompt-ids: got several of them, expected one");
}

std::vector<std::int64_t> prompt_tokens(const PromptFlags& flags, const PromptTokenizer& tokenizer) {
  if (flags.ids) return ids_of(*flags.ids);
  const std::string flag = flag_of_prompt(flags), text = text_of(flags);
  if (const auto at = base::invalid_utf8(text))
    throw InputError("{}: byte {} of the text is not UTF-8, expected UTF-8 (iconv -t UTF-8 converts other encodings)",
                     flag, *at);
  if (tokenizer.folder.empty())
    throw InputError("{}: no tokenizer is known for {}, expected tokenizer.json in it, or --prompt-ids with token ids",
                     flag, tokenizer.model_path);
  const std::filesystem::path file = tokenizer.folder / "tokenizer.json";
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored))
    throw InputError("{}: {} does not exist, expected it beside the other files of the tokenizer (or --prompt-ids)",
                     flag, file.string());
  const auto tokens = hub::PythonTokenizer(file, tokenizer.pythons).encode(text, tokenizer.begin);
  if (!tokens)
    throw InputError(
        "{}: no Python with the package tokenizers was found, expected one in $TESSERA_PYTHON or as python3 "
        "(pip install tokenizers), or --prompt-ids with token ids",
        flag);
  return *tokens;
}

void check_prompt(const std::vector<std::int64_t>& tokens, const PromptFlags& flags, std::int64_t vocab_size) {
  const std::string flag = flag_of_prompt(flags);
  if (tokens.empty()) throw InputError("{}: the prompt is empty, expected at least one token", flag);
  for (const std::int64_t id : tokens)
    if (id < 0 || id >= vocab_size)
      throw InputError("{}: {} token {}, expected 0 to {}: the model has a vocabulary of {}", flag,
                       flags.ids ? "got" : "the tokenizer gives", id, vocab_size - 1, vocab_size);
}

}  // namespace tessera::serve
