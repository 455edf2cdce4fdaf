// A device that holds memory and runs work: the CPU or a CUDA device of this process. In a dry run there is no device,
// and buffers have sizes but no memory.
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

// Returns 0 if there is no device or no driver, or if the library was built without CUDA.
int cuda_device_count();
// Sets the CUDA device of the calling thread. Does nothing for the CPU. Throws Error if the device does not exist.
void set_device(Device device);
// Returns whether `pointer` is memory of a CUDA device. Pinned memory is not device memory.
bool is_device_memory(const void* pointer);
// Free bytes and total bytes of a device. For the CPU, both numbers are the maximum of int64.
struct DeviceMemory {
  std::int64_t free = std::numeric_limits<std::int64_t>::max(), total = free;
};
DeviceMemory memory_of(Device device);
// Copies bytes; source and target may each be host or device memory. Returns when the copy is complete. Does not wait
// for the streams of lanes.
void copy_bytes(void* target, const void* source, std::size_t bytes);

}  // namespace tessera::base
