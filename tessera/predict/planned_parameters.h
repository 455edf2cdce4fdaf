// Computes the sizes of a model's parameters on a mesh from their layouts, without allocating them.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "tessera/predict/dry_step.h"
#include "tessera/shard/sizes.h"

namespace tessera::predict {

struct PlannedParameter {
  schedule::ParameterSize size;     // maximum over the ranks
  std::int64_t shard_elements = 0;  // maximum over the ranks
  std::int64_t stored_bytes = 0;    // bytes of all planes; maximum over the ranks
  // Number of elements whose gradient a rank sums, and number of elements that a rank updates. Each is the maximum over
  // the ranks, and 0 for a frozen parameter.
  std::int64_t gradient_elements = 0, state_elements = 0;
  // The backward weight of this weight, or kNoParameter if backward passes read the weight itself.
  schedule::ParameterId backward_weight = schedule::kNoParameter;
  // For a table that exchanges rows (shard/rows/rows.h): bytes of the row buffers, and number of elements that a
  // microbatch reads. 0 for other parameters.
  std::int64_t row_buffers = 0, rows_read = 0;
  // Bytes that all ranks together receive in one gather, in one exchange of gradients, in one sum over replicas and in
  // one publish.
  std::int64_t gather_total = 0, reduce_total = 0, replica_total = 0, publish_total = 0;

  // Returns the number of elements of a microbatch's gradient that a rank sums.
  std::int64_t summed_elements() const {
    return row_buffers > 0 ? std::min(shard_elements, rows_read) : shard_elements;
  }
};

// `cuts` are the cuts of the parameter's domain with the options of the run (runtime::with_options).
PlannedParameter planned_parameter(const shard::ParameterSpec& spec, const shard::ParameterTypes& types,
                                   const shard::Cuts& cuts);
// Numbers of elements of a trained parameter on one rank. summed: elements whose gradient the rank sums in each
// microbatch. updated: elements that the rank updates. `summed` is 0 for a table that exchanges rows, because that
// number depends on the tokens.
struct RankElements {
  std::int64_t summed = 0, updated = 0;
};
RankElements elements_of_rank(const shard::ParameterSpec& spec, const shard::ParameterTypes& types,
                              const shard::Cuts& cuts, const shard::Place& place);
// Returns the sizes of the parameters of a dry step, by id. Parameters that differ only in their names are planned
// once.
std::vector<PlannedParameter> planned_parameters(const DryStep& dry, const shard::ParameterTypes& types);
// Computes the result of planned_parameters, with the sizes that `plan` returns for a parameter and the cuts of its
// domain.
using PlanParameter = std::function<PlannedParameter(const shard::ParameterSpec&, const shard::Cuts&)>;
std::vector<PlannedParameter> planned_each(const DryStep& dry, const PlanParameter& plan);

}  // namespace tessera::predict
