// --init: the weights of a Hugging Face folder that a run starts from.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "tessera/models/model_config.h"
#include "tessera/run/config/config.h"
#include "tessera/train/trainer.h"

namespace tessera::run {

// Returns the model of the --init folder after checking the folder's files. Throws InputError, which names the flag, if
// the folder does not hold Hugging Face weights, or holds a checkpoint.
models::ModelConfigPtr read_init_model(const std::filesystem::path& folder);

// Throws InputError, which names --model and --init, if a value of `model` differs from that of `init_model`.
void require_model_of_init(const models::ModelConfig& model, const models::ModelConfig& init_model,
                           const TrainConfig& config);

// Returns a warning if the model's folder holds weights, because --model does not read them; else an empty string.
// `file`: the model's config.json.
std::string unread_weights_warning(const std::filesystem::path& file, const std::string& model);

// Collective over the world. Reads this rank's shards of the weights, and of the masters if their type is wider than
// that of the weights. Returns lines about values that are not finite, the same on every rank. Throws the same
// InputError on all ranks.
std::vector<std::string> load_initial_weights(train::Trainer& trainer, const std::filesystem::path& folder);

}  // namespace tessera::run
