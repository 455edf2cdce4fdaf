#include "tessera/base/memory/scratch.h"

#include <algorithm>
#include <bit>

#include "tessera/base/error.h"

namespace tessera::base {
namespace {

constexpr std::size_t kMaxBytes = std::size_t{1} << 62;  // rounding up does not overflow

}  // namespace

Scratch::~Scratch() {
  if (pool_) pool_->return_buffer(std::move(buffer_));
}

Scratch ScratchPool::take(std::size_t bytes) {
  TESSERA_CHECK(bytes <= kMaxBytes, "scratch: requested {} bytes, expected at most 2^62", bytes);
  const std::size_t room = std::bit_ceil(std::max(bytes, kAlignment));
  std::lock_guard lock(mutex_);
  const auto found = std::ranges::lower_bound(free_, room, {}, &Buffer::size);
  if (found != free_.end()) {
    Buffer buffer = std::move(*found);
    free_.erase(found);
    return {std::move(buffer), bytes, shared_from_this()};
  }
  free_.reserve(created_ + 1);
  Buffer buffer(room, device_);
  ++created_;
  return {std::move(buffer), bytes, shared_from_this()};
}

void ScratchPool::return_buffer(Buffer buffer) {
  std::lock_guard lock(mutex_);
  const auto place = std::ranges::lower_bound(free_, buffer.size(), {}, &Buffer::size);
  free_.insert(place, std::move(buffer));
}

}  // namespace tessera::base
