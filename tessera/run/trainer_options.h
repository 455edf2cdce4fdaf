// A run's settings as what a trainer is made of.
#pragma once
#include "tessera/models/model_config.h"
#include "tessera/run/config/config.h"
#include "tessera/train/lr_schedule.h"
#include "tessera/train/trainer.h"

namespace tessera::run {

// config: resolved (config/resolve.h). `model` outlives the trainer. Errors (InputError): recompute_choice's.
train::TrainerOptions trainer_options(const TrainConfig& config, const models::ModelConfig& model);
// config: resolved.
train::LrSchedule lr_schedule_of(const TrainConfig& config);

}  // namespace tessera::run
