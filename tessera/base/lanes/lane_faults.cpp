#include "tessera/base/lanes/cuda_lane.h"

#include <vector>

namespace tessera::base {
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

std::exception_ptr LaneFaults::at(std::int64_t position) {
  remove_finished(position);  // usually removes all fences, because callers check fences in order
  std::vector<Fence> followed;
  {
    std::lock_guard lock(mutex_);
    if (position >= broken_at_) return error_;
    for (const Dependency& one : dependencies_) {
      if (one.position > position) break;
      followed.push_back(one.fence);
    }
  }
  // The lock is not held here: error() may call other lanes, and they may call this lane for earlier work.
  for (const Fence& fence : followed)
    if (auto error = fence.error()) return error;
  return nullptr;
}

bool LaneFaults::is_abandoned_locked(std::int64_t position) const {
  return position >= broken_at_ && std::chrono::steady_clock::now() - broken_since_ > grace_;
}

bool LaneFaults::is_abandoned(std::int64_t position) const {
  std::lock_guard lock(mutex_);
  return is_abandoned_locked(position);
}

void LaneFaults::run_unless_abandoned(std::int64_t position, const std::function<void()>& work) const {
  std::lock_guard lock(mutex_);
  if (!is_abandoned_locked(position)) work();
}

void LaneFaults::follow(const Fence& fence) {
  remove_finished(std::numeric_limits<std::int64_t>::max());
  std::lock_guard lock(mutex_);
  dependencies_.push_back({.position = position_, .fence = fence});
}

void LaneFaults::remove_finished(std::int64_t position) {
  for (;;) {
    Dependency first;
    {
      std::lock_guard lock(mutex_);
      if (dependencies_.empty() || dependencies_.front().position > position) return;
      first = dependencies_.front();
    }
    if (!first.fence.done()) return;
    if (auto error = first.fence.error()) fail(first.position, error);
    std::lock_guard lock(mutex_);
    if (!dependencies_.empty() && dependencies_.front().fence.state() == first.fence.state()) dependencies_.pop_front();
  }
}

}  // namespace tessera::base
