#include "tessera/runtime/buffer_pool.h"

#include <algorithm>

namespace tessera::runtime {

base::Buffer BufferPool::take(std::size_t bytes) {
  out_ += bytes;
  peak_ = std::max(peak_, out_);
  auto found = free_.find(bytes);
  if (found == free_.end() || found->second.empty()) return base::Buffer(bytes, device_);
  base::Buffer buffer = std::move(found->second.back());
  found->second.pop_back();
  return buffer;
}

void BufferPool::return_buffer(base::Buffer buffer) {
  out_ -= buffer.size();
  const std::size_t bytes = buffer.size();
  free_[bytes].push_back(std::move(buffer));
}

void BufferPool::free_unused() {
  free_.clear();
}

}  // namespace tessera::runtime
