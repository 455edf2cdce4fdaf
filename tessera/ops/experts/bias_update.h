// The update of a router's bias, which balances the load of the experts without a loss (DeepSeek-V3). On a CPU.
#pragma once
#include <cstdint>
#include <span>

#include "tessera/quant/dtype.h"

namespace tessera::ops {

// Adds rate * sign(sum of counts - E * counts[e]) to the bias of each expert e of [first, first + count), where E is
// the number of counts. counts: how often each expert was chosen. bias: `count` elements of fp32 or fp64, the first of
// which is that of expert `first`. Each addition is rounded once.
void update_router_bias(void* bias, quant::DType type, std::int64_t first, std::int64_t count,
                        std::span<const std::int64_t> counts, double rate);

}  // namespace tessera::ops
