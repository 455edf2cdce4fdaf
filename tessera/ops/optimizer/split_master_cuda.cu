#include "tessera/ops/optimizer/split_master.h"
#include "tessera/ops/packs.cuh"

namespace tessera::ops::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) keep_representable(float* masters, std::int64_t count) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) masters[i] = representable(masters[i]);
}

}  // namespace

void make_representable(float* masters, std::int64_t count, base::CudaStream stream) {
  if (count == 0) return;
  keep_representable<<<blocks_for(count, kThreads), kThreads, 0, stream>>>(masters, count);
  check_launch("make_representable");
}

}  // namespace tessera::ops::cuda
