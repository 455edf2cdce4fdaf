#include "tessera/ops/experts/bias_update.h"

#include <numeric>

#include "tessera/base/error.h"
#include "tessera/ops/arithmetic.h"

namespace tessera::ops {

void update_router_bias(void* bias, quant::DType type, std::int64_t first, std::int64_t count,
                        std::span<const std::int64_t> counts, double rate) {
  const auto experts = static_cast<std::int64_t>(counts.size());
  TESSERA_CHECK(first >= 0 && count >= 0 && first + count <= experts, "biases of experts {} to {}, expected at most {}",
                first, first + count, experts);
  const std::int64_t all = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  dispatch_accumulator(type, [&](auto element) {
    using A = decltype(element);
    auto* own = static_cast<A*>(bias);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t missing = all - experts * counts[static_cast<std::size_t>(first + i)];
      if (missing > 0) own[i] += static_cast<A>(rate);
      if (missing < 0) own[i] -= static_cast<A>(rate);
    }
  });
}

}  // namespace tessera::ops
