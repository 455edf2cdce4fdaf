// Temporary memory for the work of one stream. The memory is reused without new allocations on the device.
#pragma once
#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "tessera/base/memory/buffer.h"

namespace tessera::base {

class ScratchPool;

// Temporary memory. Move-only. The destructor returns the memory to its pool. All work that uses the memory must be
// enqueued before the destructor runs.
class Scratch {
 public:
  // Makes a scratch that does not belong to a pool.
  explicit Scratch(Buffer buffer) : buffer_(std::move(buffer)), size_(buffer_.size()) {}
  Scratch(Buffer buffer, std::size_t size, std::shared_ptr<ScratchPool> pool)
      : buffer_(std::move(buffer)), size_(size), pool_(std::move(pool)) {}
  ~Scratch();
  Scratch(Scratch&&) noexcept = default;
  Scratch& operator=(Scratch&&) = delete;

  std::byte* data() { return buffer_.data(); }
  const std::byte* data() const { return buffer_.data(); }
  std::size_t size() const { return size_; }

 private:
  Buffer buffer_;
  std::size_t size_;  // requested bytes
  std::shared_ptr<ScratchPool> pool_;
};

// A pool of temporary memory for one stream. Later work of the stream reuses memory that is returned to the pool. The
// pool frees its memory only when the pool and the last Scratch are destroyed. Until then, graphs of the stream's work
// can use the memory with which they were captured. The code that launches a graph must order the graph with the
// stream's other work (docs/schedule.md). Sizes are rounded up to powers of two, so that the pool keeps few different
// sizes. The pool is held by a shared_ptr. Any thread may use the object.
class ScratchPool : public std::enable_shared_from_this<ScratchPool> {
 public:
  explicit ScratchPool(Device device) : device_(device) {}
  // Throws Error if there is too little memory.
  Scratch take(std::size_t bytes);

 private:
  friend class Scratch;
  void return_buffer(Buffer buffer);

  const Device device_;
  std::mutex mutex_;
  std::vector<Buffer>
      free_;  // ordered by size; has room for all created_ buffers, so that return_buffer() does not allocate
  std::size_t created_ = 0;
};

}  // namespace tessera::base
