#include "tessera/base/memory/buffer.h"

#include <algorithm>

#include "tessera/base/device_guard.h"
#include "tessera/base/error.h"
#include "tessera/base/memory/out_of_memory.h"

namespace tessera::base::detail {
namespace {

std::size_t room_of(std::size_t bytes) {
  return std::max<std::size_t>(bytes, 1);
}

void check_allocation(cudaError_t status, std::size_t bytes, const std::string& where) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();
  if (status == cudaErrorMemoryAllocation) throw OutOfMemory("out of memory: requested {} bytes of {}", bytes, where);
  throw Error("allocation of {} bytes of {}: {} ({})", bytes, where, cudaGetErrorString(status),
              cudaGetErrorName(status));
}

// Ignores an error of a free. Either earlier work failed, which the fences of this work report, or the process is
// ending.
void clear_error(cudaError_t status) {
  if (status != cudaSuccess) (void)cudaGetLastError();
}

}  // namespace

Memory allocate_device(std::size_t bytes, Device device) {
  const DeviceGuard guard(device);
  void* pointer = nullptr;
  check_allocation(cudaMalloc(&pointer, room_of(bytes)), bytes, name_of(device));
  const auto release = [](std::byte* memory) { clear_error(cudaFree(memory)); };
  return {static_cast<std::byte*>(pointer), {.function = release, .device = device}};
}

Memory allocate_pinned(std::size_t bytes) {
  void* pointer = nullptr;
  check_allocation(cudaHostAlloc(&pointer, room_of(bytes), cudaHostAllocPortable), bytes, "pinned memory");
  const auto release = [](std::byte* memory) { clear_error(cudaFreeHost(memory)); };
  return {static_cast<std::byte*>(pointer), {.function = release}};
}

void fill_device(void* memory, std::uint8_t value, std::size_t bytes, Device device, CudaStream stream) {
  const DeviceGuard guard(device);
  TESSERA_CUDA_CHECK(cudaMemsetAsync(memory, value, bytes, stream));
  if (stream == nullptr) TESSERA_CUDA_CHECK(cudaStreamSynchronize(stream));
}

}  // namespace tessera::base::detail
