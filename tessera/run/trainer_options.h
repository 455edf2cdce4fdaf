// A run's settings as what a trainer is made of.
#pragma once
#include "tessera/models/model_config.h"
#include "tessera/predict/dry_step.h"
#include "tessera/run/config/config.h"
#include "tessera/train/lr_schedule.h"
#include "tessera/train/trainer.h"

namespace tessera::run {

// config: resolved, of a run or of a plan.
shard::ParameterTypes types_of(const TrainConfig& config);
// The last tp rank's step: no other has more query heads, columns of the feed-forward part or rows of the vocabulary,
// but one may read more key/value heads (recompute_choice.h, kinds_of_ranks). config: as above. The model outlives the
// options and what is made of them.
predict::DryOptions dry_options(const TrainConfig& config, const models::ModelConfig& model,
                                nn::BlockRecompute recompute);
// config: resolved (config/resolve.h). The model outlives the trainer. Errors (InputError): recompute_choice's.
train::TrainerOptions trainer_options(const TrainConfig& config, const models::ModelConfig& model);
// config: resolved.
train::LrSchedule lr_schedule_of(const TrainConfig& config);

}  // namespace tessera::run
