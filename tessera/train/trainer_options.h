// A run's settings as what a trainer is made of.
#pragma once
#include "tessera/train/config/config.h"
#include "tessera/train/lr_schedule.h"
#include "tessera/train/trainer.h"

namespace tessera::train {

// config: resolved (config/check.h). Errors (InputError): recompute_choice's.
TrainerOptions trainer_options(const TrainConfig& config, const nn::LlamaConfig& model);
// config: resolved.
LrSchedule lr_schedule_of(const TrainConfig& config);

}  // namespace tessera::train
