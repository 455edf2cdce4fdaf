// Builds one rank's microbatches from the samples of a step.
#pragma once
#include <cstdint>

#include "tessera/run/run_setup.h"
#include "tessera/shard/parallel_groups.h"
#include "tessera/train/trainer.h"

namespace tessera::run {

// Returns the input of training step `step` (from 1). The input refers to `setup`, which must outlive it.
train::StepInput training_input(const RunSetup& setup, const shard::ParallelGroups& parallel, std::int64_t step);

// How held-out data is read.
struct EvaluationShape {
  std::int64_t micro_batch = 1, seq_len = 0;  // the values with which the data was opened
};
// Returns an input with all samples of the data once, in file order, in blocks of micro_batch. Replica d takes the d-th
// consecutive share of the blocks. Block k of the share is microbatch k / gtp of gtp rank k mod gtp. If no block is
// left for a microbatch, the rank computes a block with all targets masked, so that every gtp degree sums the same
// losses. `data` must outlive the input.
train::StepInput evaluation_input(const data::TrainingData& data, const EvaluationShape& shape,
                                  const shard::ParallelGroups& parallel);

}  // namespace tessera::run
