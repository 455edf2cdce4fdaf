// The update of a router's bias, which balances the load of the experts without a loss term (DeepSeek-V3). CPU only.
#pragma once
#include <cstdint>
#include <span>

#include "tessera/quant/dtype.h"

namespace tessera::ops {

// Adds rate * sign(sum of counts - E * counts[e]) to the bias of each expert e in [first, first + count). E is the
// number of experts, which is the size of `counts`. counts[e] is the number of tokens that chose expert e. `bias`
// contains the `count` biases in fp32 or fp64. Each addition is rounded once.
void update_router_bias(void* bias, quant::DType type, std::int64_t first, std::int64_t count,
                        std::span<const std::int64_t> counts, double rate);

}  // namespace tessera::ops
