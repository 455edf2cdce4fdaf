// Helpers of the tests of settings.
#pragma once
#include <string>
#include <vector>

#include "tessera/models/architectures/llama.h"
#include "tessera/models/architectures/mixtral.h"
#include "tessera/settings/resolved_run.h"
#include "tessera/settings/text/parse.h"
#include "tests/base/files.h"

namespace tessera::settings {

inline TrainConfig parse(const std::vector<std::string>& flags) {
  return parse_train_flags(flags).config;
}

// Returns the planned run of a small model. The backend is that of the settings.
inline ResolvedRun run_of(TrainConfig config, const models::DecoderConfig& model = {.vocab_size = 31,
                                                                                    .hidden_size = 12,
                                                                                    .intermediate_size = 17,
                                                                                    .num_layers = 2,
                                                                                    .num_heads = 3,
                                                                                    .num_kv_heads = 1,
                                                                                    .head_dim = 4,
                                                                                    .max_position_embeddings = 10}) {
  config.given.insert("backend");
  models::ModelConfigPtr read = std::make_shared<models::LlamaConfig>(model);
  if (model.experts) read = std::make_shared<models::MixtralConfig>(model);
  return resolve(std::move(config), std::move(read), Use::plan);
}

}  // namespace tessera::settings
