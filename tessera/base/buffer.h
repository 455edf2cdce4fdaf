// An owned, aligned, uninitialised piece of memory: of the host, pinned, or of a CUDA device.
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

// GEMM operands start at multiples of this, so that the same shape takes the same path (docs/numerics.md).
inline constexpr std::size_t kAlignment = 256;

template <std::integral Bytes>
constexpr Bytes align_up(Bytes bytes, std::type_identity_t<Bytes> alignment = kAlignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

namespace detail {
// How a piece of memory is given back. Never throws.
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

// Move-only owner (but of borrowed memory). data() is never null, even for 0 bytes, but on no device, where it always
// is. Throws Error when memory is short.
class Buffer {
 public:
  Buffer() : Buffer(0) {}
  explicit Buffer(std::size_t bytes);
  // Giving device memory back may wait for the device's work, and it must not be in use then.
  Buffer(std::size_t bytes, Device device);
  // Host memory that a device reads, and copies from and to, without the host's help.
  static Buffer pinned(std::size_t bytes);
  // Memory of somebody else, who gives it back after this object and what it is moved to have gone.
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
  // Returns when it is done.
  void fill_zero();
  // Every byte, as work on `stream`. Device memory only. Only tests call it.
  void fill(std::uint8_t value, CudaStream stream);

 private:
  Buffer(std::size_t bytes, detail::Memory memory) : data_(std::move(memory)), size_(bytes) {}

  detail::Memory data_;
  std::size_t size_ = 0;
};

}  // namespace tessera::base
