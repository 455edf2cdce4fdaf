#include "tessera/quant/masters/master_cast.h"

#include "tessera/quant/cuda_table.h"

namespace tessera::quant {

std::unique_ptr<MasterCast> make_master_cast(std::span<const MasterSlice> slices, base::Device device,
                                             base::CudaStream stream, std::int64_t numbers) {
  if (device.kind == base::DeviceKind::cpu) return make_host_master_cast(slices, numbers);
  return require_cuda(base::name_of(device)).make_master_cast(slices, device, stream, numbers);
}

}  // namespace tessera::quant
