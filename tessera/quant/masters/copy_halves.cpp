#include "tessera/quant/masters/copy_halves.h"

#include "tessera/quant/cuda_table.h"

namespace tessera::quant {

void copy_halves(Half half, const std::uint8_t* source, std::span<std::uint8_t* const> targets, base::Device device,
                 base::CudaStream stream) {
  if (device.kind == base::DeviceKind::cuda)
    return require_cuda(base::name_of(device)).copy_halves(half, source, targets, device, stream);
  for (std::uint8_t* target : targets) *target = with_half(*target, *source++, half);
}

}  // namespace tessera::quant
