// The calls of Program that an update makes after a training step. A training run and a dry run share these functions,
// so a plan has the events of the run.
//
//   reduce_amaxes               if the model has delayed scales
//   reduce_counts, publish      if the biases of routers change
//   exchange_matrices twice     for each bucket and type of matrices that a rule computes as wholes
//   reduce_amaxes, publish      for each bucket of weights; reduce_amaxes only if casts need amaxes of whole matrices
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "tessera/runtime/program.h"

namespace tessera::runtime {

// Sums the counts over all ranks and calls `update`, which returns whether the biases are published. Makes no call if
// `biases` is empty.
void update_biases(Program& program, std::span<const schedule::ParameterId> biases, std::span<std::int64_t> counts,
                   const std::function<bool()>& update);
// Divides the trainable weights into the buckets of schedule/buckets.h, and calls update(bucket) before it publishes a
// bucket. A bucket is updated, cast and published as a whole, so the gathers of its weights can start while later
// buckets are updated. order: all weights, in the order of first uses.
void update_buckets(Program& program, std::vector<schedule::ParameterId> order,
                    const std::function<void(std::span<const schedule::ParameterId> bucket)>& update);

// The parts of an update beside the weights.
struct UpdateParts {
  std::span<float> scales;                    // amaxes of delayed scales
  std::vector<schedule::ParameterId> biases;  // biases of routers that change
  std::int64_t experts = 0;                   // elements of a bias
  // Returns the exchanges of a bucket in the order of their calls. Empty: no rule computes with whole matrices. Called
  // for each bucket once, in order.
  std::function<std::vector<MatrixExchange>(std::span<const schedule::ParameterId> bucket)> exchanges;
};
// Makes all calls of an update without its work. step: the trace of the step.
void dry_update(Program& program, const schedule::Trace& step, const UpdateParts& parts);

}  // namespace tessera::runtime
