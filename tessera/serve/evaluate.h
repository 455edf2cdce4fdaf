// `tessera evaluate`: the loss of a stored model on a data set.
#pragma once
#include <string>

#include "tessera/settings/config.h"

namespace tessera::serve {

struct EvaluateCommand {
  std::string path;              // a run, a checkpoint or a Hugging Face folder
  std::string data;              // PREFIX of PREFIX.bin and PREFIX.idx
  settings::TrainConfig config;  // settings from flags
  bool json = false;
};
// Reads every sample once. Prints the mean loss of a token, the perplexity and the number of counted tokens. Returns
// the exit code. Throws InputError.
int evaluate(const EvaluateCommand& command);

}  // namespace tessera::serve
