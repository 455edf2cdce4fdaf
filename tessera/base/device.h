// Where memory lies and work runs: the CPU, or one CUDA device of this process. Or nowhere: in a dry run buffers have
// sizes and no memory.
#pragma once
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

namespace tessera::base {

enum class DeviceKind : std::uint8_t { cpu, cuda, none };

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;
  bool operator==(const Device&) const = default;
};

constexpr Device cuda_device(int index) {
  return {.kind = DeviceKind::cuda, .index = index};
}
inline constexpr Device kNoDevice{.kind = DeviceKind::none, .index = 0};
std::string name_of(Device device);  // "cpu", "cuda:1", "none"

// 0 where there is no device or no driver, and where the library was built without CUDA.
int cuda_device_count();
// Makes a CUDA device the calling thread's; nothing for the CPU. Errors: no such device.
void set_device(Device device);
// Whether `pointer` is memory of a CUDA device; pinned memory is not.
bool is_device_memory(const void* pointer);
// Bytes of the device that nobody uses, and all of them; both the greatest number for the CPU.
struct DeviceMemory {
  std::int64_t free = std::numeric_limits<std::int64_t>::max(), total = free;
};
DeviceMemory memory_of(Device device);
// Copies between any two places, host or device. Returns when the bytes are there; waits for no stream but its own.
void copy_bytes(void* target, const void* source, std::size_t bytes);

}  // namespace tessera::base
