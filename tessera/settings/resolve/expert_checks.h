// Checks of the settings of models with experts.
#pragma once
#include <string_view>

#include "tessera/models/model_config.h"
#include "tessera/settings/config.h"

namespace tessera::settings {

// Throws InputError for settings of experts with a dense model, and for settings that a model with experts lacks.
// `config` has the degrees of the mesh.
void check_experts(const TrainConfig& config, const models::ModelSizes& sizes);

// Throws InputError if a layer has more experts than the routers of GPUs support. --ep does not change this number,
// because each rank chooses among all experts.
void check_device_experts(std::string_view model, const models::ModelSizes& sizes);

}  // namespace tessera::settings
