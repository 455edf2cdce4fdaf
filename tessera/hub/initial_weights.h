// Reads the weights with which a run starts from a Hugging Face folder (--init).
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "tessera/models/model_config.h"
#include "tessera/settings/config.h"
#include "tessera/train/trainer.h"

namespace tessera::hub {

// Checks the files of the --init folder and returns its model. Throws InputError, which names the flag, if the folder
// does not contain Hugging Face weights, or contains a checkpoint.
models::ModelConfigPtr read_init_model(const std::filesystem::path& folder);

// Throws InputError, which names --model and --init, if the two model configurations differ in a value.
void require_model_of_init(const models::ModelConfig& model, const models::ModelConfig& init_model,
                           const settings::TrainConfig& config);

// Returns a warning if the folder of the model's config.json contains weights, because --model does not read weights.
// Otherwise returns an empty string. `file` is the config.json.
std::string unread_weights_warning(const std::filesystem::path& file, const std::string& model);

// Collective over the world. Reads this rank's shards of the weights. Also reads its shards of the masters if their
// type is wider than the type of the weights. Returns lines about values that are not finite; the lines are equal on
// every rank. Throws the same InputError on all ranks.
std::vector<std::string> load_initial_weights(train::Trainer& trainer, const std::filesystem::path& folder);

}  // namespace tessera::hub
