// The definition of the amaxes of UpdateShard, one element at a time.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>

#include "tessera/ops/optimizer/update_rule.h"
#include "tessera/quant/bfloat16.h"

namespace tessera::ops::test {

// Raises amaxes[i] to the amax of the elements of matrix i in the shard. Matrix 0 contains the first element. The
// master is in host memory.
inline void raise_by_definition(const UpdateShard& shard, float* amaxes) {
  for (std::int64_t i = 0; i < shard.count; ++i) {
    const std::int64_t matrix = shard.amax_elements == 0 ? 0 : (shard.amax_offset + i) / shard.amax_elements;
    const float rounded = static_cast<float>(quant::bfloat16(static_cast<const float*>(shard.master)[i]));
    if (!std::isnan(rounded)) amaxes[matrix] = std::max(amaxes[matrix], std::fabs(rounded));
  }
}

// Returns the number of matrices of which the shard has elements.
inline std::int64_t touched_matrices(const UpdateShard& shard) {
  if (shard.count == 0) return 0;
  return shard.amax_elements == 0 ? 1 : (shard.amax_offset + shard.count - 1) / shard.amax_elements + 1;
}

}  // namespace tessera::ops::test
