// Computes the sizes of a model's parameters on a mesh, from layouts alone.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "tessera/predict/dry_step.h"
#include "tessera/shard/sizes.h"

namespace tessera::predict {

struct PlannedParameter {
  schedule::ParameterSize size;     // maximum over the ranks
  std::int64_t shard_elements = 0;  // maximum over the ranks
  std::int64_t stored_bytes = 0;    // bytes of all planes; maximum over the ranks
  // Elements whose gradient a rank sums, and elements that it updates; maximum over the ranks. 0 if frozen.
  std::int64_t gradient_elements = 0, state_elements = 0;
  std::int64_t master_bytes = 0;   // of state_elements (shard::master_bytes)
  bool written_by_layers = false;  // result of shard::writes_main_grad()
  bool splits_master = false;      // result of shard::splits_master()
  // The parameter that backward passes read instead, if there is one.
  schedule::ParameterId backward_weight = schedule::kNoParameter;
  std::int64_t row_buffers = 0;  // bytes of buffers for rows that travel by index (shard/rows/rows.h); otherwise 0
  // If has_row_gradients(): elements of the rows that a microbatch reads. Otherwise 0.
  std::int64_t rows_read = 0;
  bool squares_rows = false;  // whether the norm reads only rows that a microbatch of the step has read
  // Bytes received by all ranks together: in one gather, one exchange, one sum over replicas, one publish event.
  std::int64_t gather_total = 0, reduce_total = 0, replica_total = 0, publish_total = 0;

  // Returns the number of elements of a microbatch's gradient that a rank sums.
  std::int64_t summed_elements() const {
    if (written_by_layers) return 0;
    return rows_read > 0 ? std::min(shard_elements, rows_read) : shard_elements;
  }
  // Returns the maximum number of elements that the norm reads in a step.
  std::int64_t squared_elements(int microbatches) const {
    return squares_rows ? std::min(state_elements, microbatches * rows_read) : state_elements;
  }
  // Returns the type of main_grad.
  quant::DType gradient_type(const shard::ParameterTypes& types) const {
    return written_by_layers ? types.wire : types.accumulator;
  }
};

// `cuts`: of the parameter's domain, with the options of the run (runtime::with_options).
PlannedParameter planned_parameter(const shard::ParameterSpec& spec, const shard::ParameterTypes& types,
                                   const shard::Cuts& cuts);
// The elements of a trained parameter that one rank sums in each microbatch, the elements that it updates, and the
// elements that the norm reads. `summed` is 0 if layers write main_grad. For a table with row gradients, `summed` and
// the number that the norm reads depend on the tokens, and are 0.
struct RankElements {
  std::int64_t summed = 0, updated = 0, squared = 0;
  quant::DType gradient_type = quant::DType::fp32;  // type of main_grad
};
RankElements elements_of_rank(const shard::ParameterSpec& spec, const shard::ParameterTypes& types,
                              const shard::Cuts& cuts, const shard::Place& place);
// Returns the sizes of the parameters of a dry step, by id. Parameters that differ only in their names are computed
// once.
std::vector<PlannedParameter> planned_parameters(const DryStep& dry, const shard::ParameterTypes& types);
// Returns, for each parameter, the id of the first that differs at most in its name.
std::vector<std::size_t> first_equal(const std::vector<shard::ParameterSpec>& specs);

}  // namespace tessera::predict
