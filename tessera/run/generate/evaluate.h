// `tessera evaluate`: the loss of a stored model on a data set.
#pragma once
#include <string>

#include "tessera/run/config/config.h"

namespace tessera::run {

struct EvaluateCommand {
  std::string path;    // a run, a checkpoint or a Hugging Face folder
  std::string data;    // PREFIX of PREFIX.bin and PREFIX.idx
  TrainConfig config;  // of the flags
  bool json = false;
};
// Reads every sample once, and prints the mean loss of a token, its exponential (perplexity) and the number of tokens
// that count. Returns the exit code. Throws InputError.
int evaluate(const EvaluateCommand& command);

}  // namespace tessera::run
