// Buffers that are taken and given back many times a step; freed memory is kept for the next taker of that size.
#pragma once
#include <cstddef>
#include <map>
#include <vector>

#include "tessera/base/buffer.h"

namespace tessera::runtime {

// One thread.
class BufferPool {
 public:
  explicit BufferPool(base::Device device = {}) : device_(device) {}

  base::Buffer take(std::size_t bytes);
  void give_back(base::Buffer buffer);
  void free_unused();

  std::size_t peak_bytes() const { return peak_; }  // the most that was out at a time

 private:
  base::Device device_;
  std::map<std::size_t, std::vector<base::Buffer>> free_;
  std::size_t out_ = 0, peak_ = 0;
};

}  // namespace tessera::runtime
