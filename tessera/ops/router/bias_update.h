// The update of a router's bias, which balances the load of the experts without a loss term (DeepSeek-V3). The CPU and
// CUDA give the same bits.
#pragma once
#include <cstdint>
#include <span>

#include "tessera/base/cuda_stream.h"
#include "tessera/ops/optimizer/clip.h"
#include "tessera/quant/dtype.h"

namespace tessera::ops {

// The biases of the experts [first, first + count) of one router.
struct RouterBiasPart {
  void* bias = nullptr;  // `count` numbers of type RouterBiasRule::type
  std::int64_t first = 0, count = 0;
  const std::int64_t* counts = nullptr;  // [RouterBiasRule::experts]: the number of tokens that chose each expert
};

struct RouterBiasRule {
  quant::DType type = quant::DType::fp32;  // fp32 or fp64
  std::int64_t experts = 0;
  double rate = 0;
};

// Adds rate * sign(sum of counts - E * counts[e]) to the bias of each expert e. E is the number of experts. Each
// addition is rounded once. Throws Error if a part has experts from E on.
void update_router_biases(std::span<const RouterBiasPart> parts, const RouterBiasRule& rule);

namespace cuda {
// The pointers of the parts, and `clip`, point to device memory. If clip->applies is 0, no bias changes. Throws the
// errors of ops::update_router_biases.
void update_router_biases(std::span<const RouterBiasPart> parts, const RouterBiasRule& rule, const Clip* clip,
                          base::CudaStream stream);
}  // namespace cuda

}  // namespace tessera::ops
