#include "tessera/base/cuda_lane.h"

namespace tessera::base {
namespace {

// A device that a failure has not freed by then will not be free soon.
constexpr std::chrono::seconds kGrace{10};

}  // namespace

std::int64_t LaneFaults::begin_work() {
  std::lock_guard lock(mutex_);
  return ++position_;
}

std::int64_t LaneFaults::position() const {
  std::lock_guard lock(mutex_);
  return position_;
}

void LaneFaults::fail(std::int64_t position, std::exception_ptr error) {
  std::lock_guard lock(mutex_);
  if (position >= broken_at_) return;
  if (error_ == nullptr) broken_since_ = std::chrono::steady_clock::now();
  broken_at_ = position;
  error_ = std::move(error);
}

bool LaneFaults::broken() const {
  std::lock_guard lock(mutex_);
  return error_ != nullptr;
}

std::exception_ptr LaneFaults::at(std::int64_t position) const {
  std::deque<Followed> followed;
  {
    std::lock_guard lock(mutex_);
    if (position >= broken_at_) return error_;
    followed = followed_;
  }
  // Without the lock: it asks other lanes, which may ask this one.
  for (const Followed& one : followed)
    if (one.position <= position)
      if (auto error = one.fence.error()) return error;
  return nullptr;
}

bool LaneFaults::given_up(std::int64_t position) const {
  std::lock_guard lock(mutex_);
  return position >= broken_at_ && std::chrono::steady_clock::now() - broken_since_ > kGrace;
}

void LaneFaults::follow(const Fence& fence) {
  forget_finished();
  std::lock_guard lock(mutex_);
  followed_.push_back({.position = position_, .fence = fence});
}

void LaneFaults::forget_finished() {
  for (;;) {
    Followed first;
    {
      std::lock_guard lock(mutex_);
      if (followed_.empty()) return;
      first = followed_.front();
    }
    if (!first.fence.done()) return;
    if (auto error = first.fence.error()) fail(first.position, error);
    std::lock_guard lock(mutex_);
    if (!followed_.empty() && followed_.front().fence.state() == first.fence.state()) followed_.pop_front();
  }
}

}  // namespace tessera::base
