#include "tessera/shard/replace_storage.h"

#include <functional>

#include "tessera/base/error.h"

namespace tessera::shard {
namespace {

bool overlaps(const base::Buffer& buffer, const FlatMemory& memory, std::size_t bytes) {
  const std::less<> before;
  return buffer.size() > 0 && before(buffer.data(), memory.data + bytes) &&
         before(memory.data, buffer.data() + buffer.size());
}

void check_memory(const ShardedParameter& parameter, const FlatMemory& memory, std::size_t bytes) {
  const std::string& name = parameter.spec.name;
  const base::Device device = parameter.weight().device();
  TESSERA_CHECK(memory.bytes >= bytes, "parameter '{}': {} bytes for its storage, expected {} or more", name,
                memory.bytes, bytes);
  TESSERA_CHECK(memory.device == device, "parameter '{}': memory of {} for its storage, expected memory of {}", name,
                name_of(memory.device), name_of(device));
  TESSERA_CHECK(bytes == 0 || memory.data != nullptr, "parameter '{}': no memory for its storage of {} bytes", name,
                bytes);
  TESSERA_CHECK(reinterpret_cast<std::uintptr_t>(memory.data) % base::kAlignment == 0,
                "parameter '{}': memory at {} for its storage, expected an address that is a multiple of {}", name,
                static_cast<const void*>(memory.data), base::kAlignment);
  TESSERA_CHECK(bytes == 0 || base::is_device_memory(memory.data) == (device.kind == base::DeviceKind::cuda),
                "parameter '{}': memory at {} does not belong to {}", name, static_cast<const void*>(memory.data),
                name_of(device));
  for (const Plane& plane : parameter.planes)
    TESSERA_CHECK(!overlaps(plane.data, memory, bytes),
                  "parameter '{}': plane '{}' is already in the memory that it moves to", name, plane.spec.name);
}

}  // namespace

std::size_t storage_bytes(const ShardedParameter& parameter) {
  std::size_t bytes = 0;
  for (const Plane& plane : parameter.planes) bytes += base::align_up(plane.data.size());
  return bytes;
}

void replace_storage(ShardedParameter& parameter, const FlatMemory& memory) {
  const std::size_t bytes = storage_bytes(parameter);
  check_memory(parameter, memory, bytes);
  if (bytes == 0) return;
  std::size_t offset = 0;
  for (Plane& plane : parameter.planes) {
    const std::size_t size = plane.data.size();
    base::copy_bytes(memory.data + offset, plane.data.data(), size);
    plane.data = base::Buffer::borrowed(memory.data + offset, size, memory.device);
    offset += base::align_up(size);
  }
}

}  // namespace tessera::shard
