// How a run updates its parameters: rules, rates and decays by name. All functions are pure.
#pragma once
#include "tessera/models/model_config.h"
#include "tessera/ops/optimizer/update_policy.h"
#include "tessera/settings/config.h"

namespace tessera::settings {

// Returns whether the settings name Muon, for all matrices or by name of a parameter.
bool uses_muon(const TrainConfig& config);
// Returns the update rules of a run, with the factors and decays of its parameters. If several rules of a setting match
// a parameter, the last one counts.
ops::UpdatePolicy update_policy(const TrainConfig& config, const models::ModelConfig& model);
// Throws InputError for a rule that matches no trained parameter of the model, for a rule without an effect, and if
// Muon would update a vector or a table whose rows are read by index.
void check_update_rules(const TrainConfig& config, const models::ModelConfig& model);
// Throws InputError for a setting of Muon without Muon, for --muon-lr with a rate of 0, and for Muon on GPUs.
void check_muon(const TrainConfig& config);

}  // namespace tessera::settings
