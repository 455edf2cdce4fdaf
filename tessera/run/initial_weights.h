// --init: the weights of a Hugging Face folder that a run starts from.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "tessera/models/model_config.h"
#include "tessera/run/config/config.h"
#include "tessera/train/trainer.h"

namespace tessera::run {

// The model of the folder of --init, after a check of its files. Errors (InputError, which names the flag): the folder
// holds no such weights, or a checkpoint.
models::ModelConfigPtr read_init_model(const std::filesystem::path& folder);

// Errors (InputError, which names both): a value of the model differs from that of --init's.
void require_model_of_init(const models::ModelConfig& model, const models::ModelConfig& of_init,
                           const TrainConfig& config);

// A warning where the model's folder holds weights, which --model does not read; else empty. file: the model's
// config.json.
std::string unread_weights_warning(const std::filesystem::path& file, const std::string& model);

// Collective. Reads this rank's part of the weights, and of masters in a type wider than that of the weights. Returns
// lines about values that are not finite, the same on every rank. Errors: InputError, on every rank alike.
std::vector<std::string> load_initial_weights(train::Trainer& trainer, const std::filesystem::path& folder);

}  // namespace tessera::run
