// Options of a trainer and of a dry step that follow from a run.
#pragma once
#include "tessera/predict/dry_step.h"
#include "tessera/predict/update_bytes.h"
#include "tessera/settings/resolved_run.h"
#include "tessera/train/trainer.h"

namespace tessera::settings {

shard::ParameterTypes types_of(const ResolvedRun& run);
models::StepOptions step_options(const ResolvedRun& run, nn::BlockRecompute recompute);
// Returns the options of a dry step of the last tp rank. In a mesh without unused places, no tp rank has more query
// heads, columns of the feed-forward part or rows of the vocabulary, but other tp ranks may read more key/value heads.
// With unused places, other ranks may have more work; kinds_of_ranks and busiest in recompute_choice.h list the ranks.
predict::DryOptions dry_options(const ResolvedRun& run, nn::BlockRecompute recompute);
// Returns the recompute policy of every block. For `automatic`, the activations of a microbatch fit the budget
// (predict/recompute_choice.h). Throws the InputError of recompute_within.
std::vector<nn::Recompute> recompute_choice(const ResolvedRun& run);
// Returns the model flops of one step of the run, summed over all ranks (predict/model_flops.h). For an
// evaluation, only the forward pass counts. The result depends on the model, the global batch and the sequence length,
// and not on the mesh.
double model_flops(const ResolvedRun& run, schedule::StepKind kind = schedule::StepKind::train);
// Returns the update rules of the whole model: the state of all its parameters, without the bytes of an update.
std::vector<predict::RuleBytes> update_rules_of(const ResolvedRun& run);
// Throws the errors of recompute_choice.
train::TrainerOptions trainer_options(const ResolvedRun& run);

}  // namespace tessera::settings
