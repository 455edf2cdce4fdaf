// An owned, aligned, uninitialised piece of host memory.
#pragma once
#include <cstddef>
#include <memory>
#include <span>

namespace tessera::base {

// GEMM operands start at multiples of this, so that the same shape takes the same path (docs/numerics.md).
inline constexpr std::size_t kAlignment = 256;

constexpr std::size_t align_up(std::size_t bytes, std::size_t alignment = kAlignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

// Move-only owner. data() is never null, even for 0 bytes. Throws Error when memory is short.
class Buffer {
 public:
  Buffer() : Buffer(0) {}
  explicit Buffer(std::size_t bytes);

  std::byte* data() { return data_.get(); }
  const std::byte* data() const { return data_.get(); }
  std::size_t size() const { return size_; }

  template <typename T>
  std::span<T> as() {
    return {reinterpret_cast<T*>(data_.get()), size_ / sizeof(T)};
  }
  template <typename T>
  std::span<const T> as() const {
    return {reinterpret_cast<const T*>(data_.get()), size_ / sizeof(T)};
  }
  void fill_zero();

 private:
  struct Free {
    void operator()(std::byte* pointer) const;
  };
  std::unique_ptr<std::byte, Free> data_;
  std::size_t size_ = 0;
};

}  // namespace tessera::base
