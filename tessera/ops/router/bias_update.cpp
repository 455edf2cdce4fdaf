#include "tessera/ops/router/bias_update.h"

#include <numeric>

#include "tessera/base/error.h"
#include "tessera/ops/arithmetic.h"
#include "tessera/ops/router/bias_element.h"

namespace tessera::ops {

void check_biases(std::span<const RouterBiasPart> parts, const RouterBiasRule& rule) {
  for (const RouterBiasPart& part : parts)
    TESSERA_CHECK(part.first >= 0 && part.count >= 0 && part.first + part.count <= rule.experts,
                  "biases of experts {} to {}, expected at most {}", part.first, part.first + part.count, rule.experts);
}

void update_router_biases(std::span<const RouterBiasPart> parts, const RouterBiasRule& rule) {
  check_biases(parts, rule);
  for (const RouterBiasPart& part : parts) {
    const std::int64_t all = std::accumulate(part.counts, part.counts + rule.experts, std::int64_t{0});
    dispatch_accumulator(rule.type, [&](auto element) {
      using A = decltype(element);
      auto* own = static_cast<A*>(part.bias);
      for (std::int64_t i = 0; i < part.count; ++i)
        own[i] = updated_bias(own[i], all, rule.experts, part.counts[part.first + i], static_cast<A>(rule.rate));
    });
  }
}

}  // namespace tessera::ops
