// Converts a run's settings to a trainer's options.
#pragma once
#include "tessera/models/model_config.h"
#include "tessera/nn/mesh_degrees.h"
#include "tessera/predict/dry_step.h"
#include "tessera/settings/config.h"
#include "tessera/train/trainer.h"

namespace tessera::settings {

// `config` is a resolved configuration of a run or of a plan.
shard::ParameterTypes types_of(const TrainConfig& config);
nn::MeshDegrees mesh_of(const TrainConfig& config);
// `config` is as in types_of. `model` must outlive the options and the objects made from them.
models::StepOptions step_options(const TrainConfig& config, const models::ModelConfig& model,
                                 nn::BlockRecompute recompute);
// Returns the options of a dry step of the last tp rank. In a mesh without unused places, no tp rank has more query
// heads, columns of the feed-forward part or rows of the vocabulary, but other tp ranks may read more key/value heads.
// With unused places, other ranks may have more work; kinds_of_ranks and busiest in recompute_choice.h list the ranks.
// The arguments are as in step_options.
predict::DryOptions dry_options(const TrainConfig& config, const models::ModelConfig& model,
                                nn::BlockRecompute recompute);
// Returns the recompute policy of every block. For `automatic`, the activations of a microbatch fit the budget
// (predict/recompute_choice.h). Throws the InputError of recompute_within.
std::vector<nn::Recompute> recompute_choice(const TrainConfig& config, const models::ModelConfig& model);
// Returns the model flops of one step of a resolved run, summed over all ranks (predict/model_flops.h). For an
// evaluation, only the forward pass counts. The result depends on the model, the global batch and the sequence length,
// and not on the mesh.
double model_flops(const TrainConfig& config, const models::ModelConfig& model,
                   schedule::StepKind kind = schedule::StepKind::train);
// `config` is resolved (settings/resolve.h). `model` must outlive the trainer. Throws the errors of recompute_choice.
train::TrainerOptions trainer_options(const TrainConfig& config, const models::ModelConfig& model);

}  // namespace tessera::settings
