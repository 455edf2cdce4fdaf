// Helpers of the tests of settings.
#pragma once
#include <string>
#include <vector>

#include "tessera/models/architectures/llama.h"
#include "tessera/settings/resolved_run.h"
#include "tessera/settings/text/parse.h"
#include "tests/base/files.h"

namespace tessera::settings {

inline TrainConfig parse(const std::vector<std::string>& flags) {
  return parse_train_flags(flags).config;
}

inline models::ModelConfigPtr small_model() {
  return std::make_shared<models::LlamaConfig>(models::DecoderConfig{.vocab_size = 31,
                                                                     .hidden_size = 12,
                                                                     .intermediate_size = 17,
                                                                     .num_layers = 2,
                                                                     .num_heads = 3,
                                                                     .num_kv_heads = 1,
                                                                     .head_dim = 4,
                                                                     .max_position_embeddings = 10});
}

// Returns the run of a plan with the backend of the settings.
inline ResolvedRun run_of(TrainConfig config, models::ModelConfigPtr model = small_model()) {
  config.given.insert("backend");
  return resolve(std::move(config), std::move(model), Use::plan);
}

}  // namespace tessera::settings
