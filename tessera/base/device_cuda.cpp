#include "tessera/base/device.h"

#include <cstring>

#include "tessera/base/cuda_check.h"
#include "tessera/base/device_guard.h"
#include "tessera/base/error.h"

namespace tessera::base {

void fail_cuda(cudaError_t status, const char* what) {
  throw Error("{}: {} ({})", what, cudaGetErrorString(status), cudaGetErrorName(status));
}

void fail(const std::string& message) {
  throw Error(message);
}

int cuda_device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  (void)cudaGetLastError();
  return 0;
}

void set_device(Device device) {
  if (device.kind == DeviceKind::cpu) return;
  const int count = cuda_device_count();
  if (device.index < 0 || device.index >= count)
    throw Error("set_device: expected a CUDA device in [0, {}), got {}", count, device.index);
  TESSERA_CUDA_CHECK(cudaSetDevice(device.index));
}

bool is_device_memory(const void* pointer) {
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, pointer) != cudaSuccess) {
    (void)cudaGetLastError();
    return false;
  }
  return attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
}

DeviceMemory memory_of(Device device) {
  if (device.kind == DeviceKind::cpu) return {};
  const DeviceGuard guard(device);
  std::size_t free = 0, total = 0;
  TESSERA_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return {.free = static_cast<std::int64_t>(free), .total = static_cast<std::int64_t>(total)};
}

void copy_bytes(void* target, const void* source, std::size_t bytes) {
  if (bytes == 0) return;
  if (!is_device_memory(target) && !is_device_memory(source)) {
    std::memcpy(target, source, bytes);
    return;
  }
  TESSERA_CUDA_CHECK(cudaMemcpy(target, source, bytes, cudaMemcpyDefault));
  TESSERA_CUDA_CHECK(cudaStreamSynchronize(cudaStreamLegacy));  // cudaMemcpy may return before a small copy is done
}

}  // namespace tessera::base
