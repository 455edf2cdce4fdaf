// Bytes that the end of a step reads and writes, each once: of sums of gradients, of their norm and of AdamW.
#pragma once
#include <cstdint>

#include "tessera/shard/parameter.h"

namespace tessera::predict {

// The owner adds up `parts` ranks' parts of a gradient. is_first: the first sum of a step, which overwrites; later ones
// read what stands there and add to it.
inline std::int64_t ordered_sum_bytes(std::int64_t elements, int parts, const shard::ParameterTypes& types,
                                      bool is_first = false) {
  return parts * types.wire_bytes(elements) + (is_first ? 1 : 2) * types.accumulator_bytes(elements);
}

inline std::int64_t gradient_norm_bytes(std::int64_t elements, const shard::ParameterTypes& types) {
  return types.accumulator_bytes(elements);
}

// Reads and writes master and both moments, reads the gradient, writes the weight where it is another buffer.
inline std::int64_t adamw_bytes(std::int64_t elements, const shard::ParameterTypes& types) {
  const bool has_master = types.model != types.accumulator;
  return 7 * types.accumulator_bytes(elements) + (has_master ? shard::bytes_of(elements, types.model) : 0);
}

}  // namespace tessera::predict
