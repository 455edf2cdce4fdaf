#include <algorithm>

#include "tessera/ops/packs.cuh"
#include "tessera/ops/router/bias_element.h"

namespace tessera::ops::cuda {
namespace {

constexpr int kParts = 64;  // largest number of parts of a launch; their arguments fit into 4 KiB of kernel parameters

struct Launch {
  RouterBiasPart parts[kParts];
};

// Each thread block is one warp and updates one part.
template <typename A>
__global__ void __launch_bounds__(kWarp)
    update_parts(const __grid_constant__ Launch launch, std::int64_t experts, A rate, const Clip* __restrict__ clip) {
  if (clip->applies == 0) return;
  const RouterBiasPart& part = launch.parts[blockIdx.x];
  long long all = 0;
  for (std::int64_t e = threadIdx.x; e < experts; e += kWarp) all += part.counts[e];
  all = warp_sum(all);
  A* own = static_cast<A*>(part.bias);
  for (std::int64_t i = threadIdx.x; i < part.count; i += kWarp)
    own[i] = updated_bias<A>(own[i], all, experts, part.counts[part.first + i], rate);
}

}  // namespace

void update_router_biases(std::span<const RouterBiasPart> parts, const RouterBiasRule& rule, const Clip* clip,
                          base::CudaStream stream) {
  check_biases(parts, rule);
  while (!parts.empty()) {
    Launch launch{};
    const std::size_t count = std::min<std::size_t>(parts.size(), kParts);
    std::copy_n(parts.begin(), count, launch.parts);
    dispatch_accumulator(rule.type, [&](auto element) {
      using A = decltype(element);
      update_parts<A>
          <<<static_cast<unsigned>(count), kWarp, 0, stream>>>(launch, rule.experts, static_cast<A>(rule.rate), clip);
    });
    parts = parts.subspan(count);
  }
  check_launch("router biases");
}

}  // namespace tessera::ops::cuda
