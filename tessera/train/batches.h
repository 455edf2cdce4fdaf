// Builds one rank's microbatches from the samples of a step.
#pragma once
#include <cstdint>

#include "tessera/data/data.h"
#include "tessera/shard/parallel_groups.h"
#include "tessera/train/trainer.h"

namespace tessera::train {

// How the samples of a step are divided among the ranks.
struct TrainingShape {
  data::BatchShape batch;
  std::int64_t seq_len = 0;  // equal to the value with which the data was opened
};
// Returns the input of training step `step` (counted from 1). `data` must outlive the input.
train::StepInput training_input(const data::TrainingData& data, const TrainingShape& shape,
                                const shard::ParallelGroups& parallel, std::int64_t step);

// How held-out data is read.
struct EvaluationShape {
  std::int64_t micro_batch = 1, seq_len = 0;  // equal to the values with which the data was opened
  std::int64_t samples = 0;                   // number of samples to take, spread evenly over the data; 0: all
};
// Returns the number of samples that an evaluation takes.
std::int64_t evaluated_samples(const data::TrainingData& data, const EvaluationShape& shape);
// Returns an input that contains each taken sample once, in file order, in blocks of micro_batch samples. Replica
// d takes the d-th consecutive share of the blocks. Block k of a share is microbatch k / gtp of gtp rank k mod gtp. A
// rank without a block for a microbatch computes a block whose targets are all masked. Every gtp degree therefore sums
// the same losses. `data` must outlive the input.
train::StepInput evaluation_input(const data::TrainingData& data, const EvaluationShape& shape,
                                  const shard::ParallelGroups& parallel);

}  // namespace tessera::train
