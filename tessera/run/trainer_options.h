// A run's settings as what a trainer is made of.
#pragma once
#include "tessera/models/model_config.h"
#include "tessera/predict/dry_step.h"
#include "tessera/run/config/config.h"
#include "tessera/train/lr_schedule.h"
#include "tessera/train/trainer.h"

namespace tessera::run {

// The last tp rank's step, which has the largest parts. config: resolved, of a run or of a plan. `model` outlives it.
predict::DryOptions dry_options(const TrainConfig& config, const models::ModelConfig& model,
                                nn::BlockRecompute recompute);
// config: resolved (config/check.h). Errors (InputError): recompute_choice's.
train::TrainerOptions trainer_options(const TrainConfig& config, const models::ModelConfig& model);
// config: resolved.
train::LrSchedule lr_schedule_of(const TrainConfig& config);

}  // namespace tessera::run
