// How a run updates its parameters: rules, rates and decays by name. All functions are pure.
#pragma once
#include "tessera/models/model_config.h"
#include "tessera/ops/optimizer/update_policy.h"
#include "tessera/settings/config.h"

namespace tessera::settings {

// Returns the update rules of a run, with the factors and decays of its parameters. If several rules of a setting match
// a parameter, the last one counts.
ops::UpdatePolicy update_policy(const TrainConfig& config, const models::ModelConfig& model);
// Throws InputError for a rule that matches no trained parameter of the model, and for a rule without an effect.
void check_update_rules(const TrainConfig& config, const models::ModelConfig& model);

}  // namespace tessera::settings
