// The samples of a step as one rank's microbatches.
#pragma once
#include <cstdint>

#include "tessera/run/run_setup.h"
#include "tessera/shard/parallel_groups.h"
#include "tessera/train/trainer.h"

namespace tessera::run {

// Training step `step` (from 1). The input refers to setup's data.
train::StepInput training_input(const RunSetup& setup, const shard::ParallelGroups& parallel, std::int64_t step);

// All held-out samples once, in file order, in blocks of micro_batch; replica d takes the d-th consecutive share of the
// blocks, block k of it is microbatch k / gtp of gtp rank k mod gtp. Where blocks run out, a rank computes one whose
// targets are all masked, so that every gtp degree sums the same losses.
train::StepInput evaluation_input(const RunSetup& setup, const shard::ParallelGroups& parallel);

}  // namespace tessera::run
