#include "tessera/quant/masters/copy_halves.h"

#include <algorithm>

#include "tessera/base/device_guard.h"
#include "tessera/quant/cuda/quantize_cuda.h"

namespace tessera::quant::cuda {
namespace {

struct Targets {
  std::uint8_t* data[kTargetsOfLaunch];
};

__global__ void copy(Half half, const std::uint8_t* source, const __grid_constant__ Targets targets) {
  std::uint8_t* target = targets.data[threadIdx.x];
  *target = with_half(*target, source[threadIdx.x], half);
}

}  // namespace

void copy_halves(Half half, const std::uint8_t* source, std::span<std::uint8_t* const> targets, base::Device device,
                 base::CudaStream stream) {
  const base::DeviceGuard guard(device);
  while (!targets.empty()) {
    const auto some = targets.first(std::min(targets.size(), kTargetsOfLaunch));
    Targets list;
    std::copy(some.begin(), some.end(), list.data);
    copy<<<1, static_cast<unsigned>(some.size()), 0, stream>>>(half, source, list);
    TESSERA_CUDA_CHECK(cudaGetLastError());
    source += some.size();
    targets = targets.subspan(some.size());
  }
}

}  // namespace tessera::quant::cuda
