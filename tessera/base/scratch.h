// Memory for passing work of one stream, taken again and again without asking the device for it.
#pragma once
#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "tessera/base/buffer.h"

namespace tessera::base {

class ScratchPool;

// Move-only. Of a pool: given back to it when the owner goes, after all work that uses it was enqueued.
class Scratch {
 public:
  // Of no pool.
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
  std::size_t size_;  // what was asked for
  std::shared_ptr<ScratchPool> pool_;
};

// Serves one stream: what is given back is taken by work that the stream carries out later. Keeps all memory until it
// and the last Scratch go, since graphs of the stream's work go on using what they were recorded with; whoever launches
// one orders it with the stream's other work (docs/schedule.md). Sizes are rounded up to powers of two, so that few
// different ones are kept. Held by a shared_ptr. Any thread.
class ScratchPool : public std::enable_shared_from_this<ScratchPool> {
 public:
  explicit ScratchPool(Device device) : device_(device) {}
  // Error: memory is short.
  Scratch take(std::size_t bytes);

 private:
  friend class Scratch;
  void give_back(Buffer buffer);

  const Device device_;
  std::mutex mutex_;
  std::vector<Buffer> free_;  // by size, with room for all that were made
  std::size_t made_ = 0;
};

}  // namespace tessera::base
