// Keeps returned buffers for later requests of the same size. A step requests buffers of the same sizes many times.
#pragma once
#include <cstddef>
#include <map>
#include <vector>

#include "tessera/base/memory/buffer.h"

namespace tessera::runtime {

// Used by one thread.
class BufferPool {
 public:
  explicit BufferPool(base::Device device = {}) : device_(device) {}

  base::Buffer take(std::size_t bytes);
  void return_buffer(base::Buffer buffer);
  void free_unused();

  std::size_t peak_bytes() const { return peak_; }  // largest number of bytes in use at the same time

 private:
  base::Device device_;
  std::map<std::size_t, std::vector<base::Buffer>> free_;
  std::size_t out_ = 0, peak_ = 0;
};

}  // namespace tessera::runtime
