// An owner of aligned, uninitialised memory: host memory, pinned host memory, or memory of a CUDA device.
#pragma once
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include "tessera/base/cuda_stream.h"
#include "tessera/base/device.h"

namespace tessera::base {

// The alignment of buffers, in bytes. GEMM operands start at multiples of kAlignment, so that GEMMs of equal shape use
// the same code path (docs/numerics.md).
inline constexpr std::size_t kAlignment = 256;

template <std::integral Bytes>
constexpr Bytes align_up(Bytes bytes, std::type_identity_t<Bytes> alignment = kAlignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

namespace detail {
// Frees a piece of memory. Never throws.
struct Release {
  void (*function)(std::byte* memory) = nullptr;
  Device device = {};
  void operator()(std::byte* memory) const { function(memory); }
};
using Memory = std::unique_ptr<std::byte, Release>;

Memory allocate_device(std::size_t bytes, Device device);
Memory allocate_pinned(std::size_t bytes);
void fill_device(void* memory, std::uint8_t value, std::size_t bytes, Device device, CudaStream stream);
}  // namespace detail

// A move-only buffer. The buffer owns its memory unless the memory is borrowed. On kNoDevice, data() is always null. On
// other devices, data() is never null, even for 0 bytes. Constructors throw Error if there is too little memory.
class Buffer {
 public:
  Buffer() : Buffer(0) {}
  explicit Buffer(std::size_t bytes);
  // When the destructor runs, the device must no longer use the memory. The destructor may wait for the device.
  Buffer(std::size_t bytes, Device device);
  // Returns pinned host memory, which a device can access directly.
  static Buffer pinned(std::size_t bytes);
  // Returns a buffer that refers to memory of another owner. The owner must keep the memory until this object, or the
  // object that it is moved to, is destroyed.
  static Buffer borrowed(std::byte* memory, std::size_t bytes, Device device);

  std::byte* data() { return data_.get(); }
  const std::byte* data() const { return data_.get(); }
  std::size_t size() const { return size_; }
  Device device() const { return data_.get_deleter().device; }

  template <typename T>
  std::span<T> as() {
    return {reinterpret_cast<T*>(data_.get()), size_ / sizeof(T)};
  }
  template <typename T>
  std::span<const T> as() const {
    return {reinterpret_cast<const T*>(data_.get()), size_ / sizeof(T)};
  }
  // Sets every byte to 0. Returns when all bytes are set.
  void fill_zero();
  // Sets every byte to `value`, as work on `stream`. For device memory only. Only tests call this function.
  void fill(std::uint8_t value, CudaStream stream);

 private:
  Buffer(std::size_t bytes, detail::Memory memory) : data_(std::move(memory)), size_(bytes) {}

  detail::Memory data_;
  std::size_t size_ = 0;
};

}  // namespace tessera::base
