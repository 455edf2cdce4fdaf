// Steps of resolve (resolved_run.h): checks of settings, and settings that follow from others. Each function is pure.
// An InputError names the settings, their values and valid values. The data is checked when it is opened (data.h).
// run_mesh.h has the step between the two steps of this file.
#pragma once
#include <string>
#include <vector>

#include "tessera/models/model_config.h"
#include "tessera/settings/config.h"

namespace tessera::settings {

// Step 1 of a training run: the settings alone. Checks that required settings are given and that types, rates and sizes
// are consistent. Sets schedule_steps, grad_wire and, for several tp ranks, sequence_parallel.
TrainConfig resolve_settings(TrainConfig config);

// Step 3: the model. Sets seq_len and expert_bias_rate, and checks that seq_len is at most the model's longest
// sequence. Parallel degrees need not divide any size of the model. Throws InputError for: --embedding rows if the
// table is also the output layer's weight; a rule of number formats that does not match a parameter of the model; a
// number format or a rule without an effect.
TrainConfig resolve_model(TrainConfig config, const models::ModelConfig& model);

// Returns one line for each setting that is allowed but deserves a warning at the start of the run.
std::vector<std::string> warnings_of(const TrainConfig& config);

}  // namespace tessera::settings
