// `tessera generate`: continues a prompt with a stored model.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/run/config/config.h"
#include "tessera/run/generate/prompt.h"

namespace tessera::run {

struct GenerateCommand {
  std::string path;  // a run, a checkpoint or a Hugging Face folder
  PromptFlags prompt;
  std::int64_t tokens = 64;  // new tokens
  double temperature = 0, top_p = 1;
  bool stop_at_eos = false;
  TrainConfig config;  // settings that flags set; config.seed is the seed of the sampling
  bool json = false;
  std::vector<std::string> pythons;  // Python interpreters for the tokenizer (python_tokenizer.h)
};
// Prints the prompt and its continuation as text, or as token ids without a tokenizer. Returns the exit code. Throws
// InputError.
int generate_text(const GenerateCommand& command);

}  // namespace tessera::run
