// Counts the bytes that sums of gradients, the gradient norm and AdamW read and write.
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

inline std::int64_t gradient_norm_bytes(std::int64_t elements, const shard::ParameterTypes& types) {
  return types.accumulator_bytes(elements);
}

// AdamW reads and writes the master and both moments, and reads the gradient. AdamW also writes the weight if it is
// separate from the master.
inline std::int64_t adamw_bytes(std::int64_t elements, const shard::ParameterTypes& types) {
  const bool has_master = types.model != types.accumulator;
  return 7 * types.accumulator_bytes(elements) + (has_master ? shard::bytes_of(elements, types.model) : 0);
}

}  // namespace tessera::predict
