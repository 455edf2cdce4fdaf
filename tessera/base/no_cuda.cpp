// Replaces the CUDA functions in a build without CUDA.
#include <cstring>

#include "tessera/base/error.h"
#include "tessera/base/lanes/cuda_lane.h"
#include "tessera/base/memory/buffer.h"

namespace tessera::base {
namespace {

[[noreturn]] void absent(Device device) {
  throw Error("{}: this program was built without CUDA", name_of(device));
}

}  // namespace

int cuda_device_count() {
  return 0;
}
void set_device(Device device) {
  if (device.kind != DeviceKind::cpu) absent(device);
}
bool is_device_memory(const void*) {
  return false;
}
DeviceMemory memory_of(Device device) {
  if (device.kind != DeviceKind::cpu) absent(device);
  return {};
}
void copy_bytes(void* target, const void* source, std::size_t bytes) {
  if (bytes > 0) std::memcpy(target, source, bytes);
}

namespace detail {
Memory allocate_device(std::size_t, Device device) {
  absent(device);
}
Memory allocate_pinned(std::size_t) {
  absent(cuda_device(0));
}
void fill_device(void*, std::uint8_t, std::size_t, Device device, CudaStream) {
  absent(device);
}
}  // namespace detail

std::unique_ptr<Lane> make_cuda_lane(const std::string&, Device device, LanePriority,
                                     std::shared_ptr<LaneFaults>) {  // NOLINT(performance-unnecessary-value-param)
  absent(device);
}

}  // namespace tessera::base
