// `tessera generate`: continues a prompt with a stored model.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/serve/prompt.h"
#include "tessera/settings/config.h"

namespace tessera::serve {

struct GenerateCommand {
  std::string path;  // a run, a checkpoint or a Hugging Face folder
  PromptFlags prompt;
  std::int64_t tokens = 64;  // new tokens
  double temperature = 0, top_p = 1;
  bool stop_at_eos = false;
  settings::TrainConfig config;  // settings that flags set; config.seed is the seed of the sampling
  bool json = false;
  std::vector<std::string> pythons;  // Python interpreters for the tokenizer (python_tokenizer.h)
};
// Returns the part of a text that follows the text of the prompt. `all` is the text of the prompt's tokens and the new
// tokens, and `prompt` that of the prompt's tokens alone; both are UTF-8. If the new tokens change the end of the
// prompt's text, for example because its last token is a part of a character, the result starts at the first character
// that differs.
std::string continuation_of(const std::string& prompt, const std::string& all);

// Prints the prompt and its continuation as text, or as token ids without a tokenizer. Returns the exit code. Throws
// InputError.
int generate_text(const GenerateCommand& command);

}  // namespace tessera::serve
