// Builds one rank's microbatches from the samples of a step.
#pragma once
#include <cstdint>

#include "tessera/run/run_plan.h"
#include "tessera/shard/parallel.h"
#include "tessera/train/trainer.h"

namespace tessera::run {

// Returns the input of training step `step` (from 1). The input refers to `plan`, which must outlive it.
train::StepInput training_input(const RunPlan& plan, const shard::Parallel& parallel, std::int64_t step);

// Returns an input with all held-out samples once, in file order, in blocks of micro_batch. Replica d takes the d-th
// consecutive share of the blocks. Block k of the share is microbatch k / gtp of gtp rank k mod gtp. If no block is
// left for a microbatch, the rank computes a block with all targets masked, so that every gtp degree sums the same
// losses. `plan` must outlive the input.
train::StepInput evaluation_input(const RunPlan& plan, const shard::Parallel& parallel);

}  // namespace tessera::run
