// Values in the memory that tests pass to communicators: host memory or memory of a device.
#pragma once
#include <cstdint>
#include <vector>

#include "tessera/base/memory/buffer.h"
#include "tests/comm/ranks.h"

namespace tessera::comm {

template <typename T>
class Placed {
 public:
  explicit Placed(const std::vector<T>& values, base::Device device = device_of_tests())
      : count_(values.size()), memory_(values.size() * sizeof(T), device) {
    base::copy_bytes(memory_.data(), values.data(), memory_.size());
  }
  explicit Placed(std::int64_t count, base::Device device = device_of_tests())
      : Placed(std::vector<T>(static_cast<std::size_t>(count)), device) {}

  T* data() { return reinterpret_cast<T*>(memory_.data()); }
  const T* data() const { return reinterpret_cast<const T*>(memory_.data()); }
  std::vector<T> values() const {
    std::vector<T> values(count_);
    base::copy_bytes(values.data(), memory_.data(), memory_.size());
    return values;
  }

 private:
  std::size_t count_ = 0;
  base::Buffer memory_;
};

}  // namespace tessera::comm
