// Counts the bytes that sums of gradients and the update read and write. The gradient norm reads each gradient once.
#pragma once
#include <cstdint>

#include "tessera/ops/optimizer/update_rule.h"
#include "tessera/shard/parameter.h"

namespace tessera::predict {

// Returns the bytes of one sum: the owner of a shard adds the gradients of `parts` ranks. The first sum of a step
// (`is_first`) overwrites main_grad. Later sums read main_grad and add to it.
inline std::int64_t ordered_sum_bytes(std::int64_t elements, int parts, const shard::ParameterTypes& types,
                                      bool is_first = false) {
  return parts * types.wire_bytes(elements) + (is_first ? 1 : 2) * types.accumulator_bytes(elements);
}

// An update reads and writes the master and the rule's state, and reads the gradient, whose type is `gradient`. It also
// writes the weight if the weight is separate from the master.
inline std::int64_t update_bytes(const ops::UpdateRule& rule, std::int64_t elements, const shard::ParameterTypes& types,
                                 quant::DType gradient) {
  const bool has_master = types.model != types.accumulator;
  return 2 * (types.accumulator_bytes(elements) + ops::state_bytes(rule, elements, types.accumulator)) +
         shard::bytes_of(elements, gradient) + (has_master ? shard::bytes_of(elements, types.model) : 0);
}

}  // namespace tessera::predict
