// Sizes of a model's parameters on a mesh, from layouts alone.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "tessera/shard/sizes.h"

namespace tessera::predict {

struct MeshDegrees {
  int tp = 1, gtp = 1, dp = 1;
  bool zero = false;  // the optimizer's state is cut over dp
  int node = 1;       // consecutive gtp ranks whose gradients are added first
  std::int64_t ranks() const { return static_cast<std::int64_t>(tp) * gtp * dp; }
};

struct PlannedParameter {
  schedule::ParameterSize size;     // of the rank that has most
  std::int64_t shard_elements = 0;  // the greatest of all ranks
  std::int64_t stored_bytes = 0;    // of all planes; the greatest of all ranks
  // Of what is trained, else 0: whose gradient a rank sums, and that it updates; the greatest of all.
  std::int64_t gradient_elements = 0, state_elements = 0;
  schedule::ParameterId backward_weight = schedule::kNoParameter;  // what backward passes read instead, if anything
  // Of a table whose rows travel by index (shard/rows/rows.h), else 0: bytes of buffers; elements that a microbatch
  // reads.
  std::int64_t row_buffers = 0, rows_read = 0;
  // Bytes received by all ranks together: in one gather, one exchange, one sum over replicas, one publish.
  std::int64_t gather_total = 0, reduce_total = 0, replica_total = 0, publish_total = 0;

  // How many elements of a microbatch's gradient a rank sums.
  std::int64_t summed_elements() const {
    return row_buffers > 0 ? std::min(shard_elements, rows_read) : shard_elements;
  }
};

PlannedParameter planned_parameter(const shard::ParameterSpec& spec, const shard::ParameterTypes& types,
                                   const MeshDegrees& mesh);
// What one rank does with a parameter that is trained: elements whose parts it sums in each microbatch (none of a table
// whose rows travel: how many depends on the tokens), and that it updates.
struct RankElements {
  std::int64_t summed = 0, updated = 0;
};
RankElements elements_of_rank(const shard::ParameterSpec& spec, const shard::ParameterTypes& types,
                              const shard::Cuts& cuts, const shard::Place& place);
// Of the parameters of a model (dry_step.h), by id. Parameters that differ in nothing but their names are measured
// once. backward_weights: by weight.
std::vector<PlannedParameter> planned_parameters(const std::vector<shard::ParameterSpec>& specs,
                                                 const std::vector<schedule::ParameterId>& backward_weights,
                                                 const shard::ParameterTypes& types, const MeshDegrees& mesh);

}  // namespace tessera::predict
