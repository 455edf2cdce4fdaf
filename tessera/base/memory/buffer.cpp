#include "tessera/base/memory/buffer.h"

#include <cstring>
#include <new>

#include "tessera/base/error.h"
#include "tessera/base/memory/out_of_memory.h"

namespace tessera::base {
namespace {

detail::Memory allocate_host(std::size_t bytes) {
  void* pointer = ::operator new(align_up(bytes == 0 ? 1 : bytes), std::align_val_t(kAlignment), std::nothrow);
  if (pointer == nullptr) throw OutOfMemory("out of memory: requested {} bytes of host memory", bytes);
  const auto release = [](std::byte* memory) { ::operator delete(memory, std::align_val_t(kAlignment)); };
  return {static_cast<std::byte*>(pointer), {.function = release}};
}

detail::Memory allocate(std::size_t bytes, Device device) {
  if (device.kind == DeviceKind::none) return {nullptr, {.function = [](std::byte*) {}, .device = device}};
  return device.kind == DeviceKind::cpu ? allocate_host(bytes) : detail::allocate_device(bytes, device);
}

}  // namespace

Buffer::Buffer(std::size_t bytes) : Buffer(bytes, allocate_host(bytes)) {}

Buffer::Buffer(std::size_t bytes, Device device) : Buffer(bytes, allocate(bytes, device)) {}

Buffer Buffer::pinned(std::size_t bytes) {
  return {bytes, detail::allocate_pinned(bytes)};
}

Buffer Buffer::borrowed(std::byte* memory, std::size_t bytes, Device device) {
  TESSERA_CHECK(memory != nullptr, "borrowed: expected memory of {} bytes, got null", bytes);
  return {bytes, {memory, {.function = [](std::byte*) {}, .device = device}}};
}

void Buffer::fill_zero() {
  if (device().kind == DeviceKind::none) return;
  if (device().kind == DeviceKind::cpu)
    std::memset(data_.get(), 0, size_);
  else
    detail::fill_device(data_.get(), 0, size_, device(), nullptr);
}

void Buffer::fill(std::uint8_t value, CudaStream stream) {
  TESSERA_CHECK(device().kind == DeviceKind::cuda && stream != nullptr, "fill: expected device memory and a stream");
  detail::fill_device(data_.get(), value, size_, device(), stream);
}

}  // namespace tessera::base
