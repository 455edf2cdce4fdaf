// Counts the bytes that sums of gradients and AdamW read and write. The gradient norm reads each gradient once.
#pragma once
#include <cstdint>

#include "tessera/shard/parameter.h"

namespace tessera::predict {

// Returns the bytes of one sum: the owner of a shard adds the gradients of `parts` ranks. The first sum of a step
// (`is_first`) overwrites main_grad. Later sums read main_grad and add to it.
inline std::int64_t ordered_sum_bytes(std::int64_t elements, int parts, const shard::ParameterTypes& types,
                                      bool is_first = false) {
  return parts * types.wire_bytes(elements) + (is_first ? 1 : 2) * types.accumulator_bytes(elements);
}

// AdamW reads and writes the master and both moments, and reads the gradient, whose type is `gradient`. AdamW also
// writes the weight if it is separate from the master.
inline std::int64_t adamw_bytes(std::int64_t elements, const shard::ParameterTypes& types, quant::DType gradient) {
  const bool has_master = types.model != types.accumulator;
  return 6 * types.accumulator_bytes(elements) + shard::bytes_of(elements, gradient) +
         (has_master ? shard::bytes_of(elements, types.model) : 0);
}

}  // namespace tessera::predict
