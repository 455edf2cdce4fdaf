#include "tessera/ops/optimizer/split_master.h"

#include "tessera/base/cuda_only.h"

namespace tessera::ops {

void make_representable(float* masters, std::int64_t count, base::CudaStream stream) {
  if (stream) return base::cuda_only<cuda::make_representable>(masters, count, stream);
  for (std::int64_t i = 0; i < count; ++i) masters[i] = representable(masters[i]);
}

void split_masters(const float* masters, std::int64_t count, const SplitMasters& to, base::CudaStream stream) {
  if (stream) return base::cuda_only<cuda::split_masters>(masters, count, to, stream);
  const float* __restrict from = masters;
  quant::bfloat16* __restrict weights = to.weights;
  std::uint16_t* __restrict low_halves = to.low_halves;
  for (std::int64_t i = 0; i < count; ++i) {
    weights[i] = quant::bfloat16(from[i]);
    low_halves[i] = low_half(from[i]);
  }
}

void join_masters(const SplitMasters& from, std::int64_t count, float* masters, base::CudaStream stream) {
  if (stream) return base::cuda_only<cuda::join_masters>(from, count, masters, stream);
  const quant::bfloat16* __restrict weights = from.weights;
  const std::uint16_t* __restrict low_halves = from.low_halves;
  float* __restrict to = masters;
  for (std::int64_t i = 0; i < count; ++i) to[i] = joined_master(weights[i], low_halves[i]);
}

}  // namespace tessera::ops
