#include <cuda_runtime_api.h>

#include <array>

#include "tessera/base/cuda_check.h"
#include "tessera/telemetry/gpu/gpu_monitor.h"

namespace tessera::telemetry {

std::string pci_bus_id(base::Device device) {
  if (device.kind != base::DeviceKind::cuda) return {};
  std::array<char, 32> id{};
  TESSERA_CUDA_CHECK(cudaDeviceGetPCIBusId(id.data(), static_cast<int>(id.size()), device.index));
  return id.data();
}

std::string name_of_gpu(base::Device device) {
  if (device.kind != base::DeviceKind::cuda) return {};
  cudaDeviceProp properties{};
  TESSERA_CUDA_CHECK(cudaGetDeviceProperties(&properties, device.index));
  return properties.name;
}

}  // namespace tessera::telemetry
