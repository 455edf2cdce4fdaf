#include "tessera/base/fence.h"

#include <condition_variable>
#include <mutex>

namespace tessera::base {
namespace detail {

class FenceState {
 public:
  explicit FenceState(std::shared_ptr<VirtualClock> host) : host_(std::move(host)) {}

  bool done() const {
    std::lock_guard lock(mutex_);
    return done_;
  }
  void wait() const {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return done_; });
  }
  bool wait_for(std::chrono::nanoseconds limit) const {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, limit, [this] { return done_; });
  }
  std::exception_ptr error() const {
    std::lock_guard lock(mutex_);
    return error_;
  }
  double time() const {
    std::lock_guard lock(mutex_);
    return time_;
  }
  void raise_host() const {
    if (host_ != nullptr) host_->raise_to(time());
  }
  void complete(std::exception_ptr error, double time) {
    {
      std::lock_guard lock(mutex_);
      if (done_) return;
      done_ = true;
      error_ = std::move(error);
      time_ = time;
    }
    changed_.notify_all();
  }

 private:
  const std::shared_ptr<VirtualClock> host_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool done_ = false;
  std::exception_ptr error_;
  double time_ = 0;
};

}  // namespace detail

bool Fence::done() const {
  return state_ == nullptr || state_->done();
}

void Fence::synchronize() const {
  if (state_ == nullptr) return;
  state_->wait();
  state_->raise_host();
  if (auto error = state_->error()) std::rethrow_exception(error);
}

void Fence::wait() const {
  if (state_ == nullptr) return;
  state_->wait();
  if (auto error = state_->error()) std::rethrow_exception(error);
}

bool Fence::wait_for(std::chrono::nanoseconds limit) const {
  return state_ == nullptr || state_->wait_for(limit);
}

std::exception_ptr Fence::error() const {
  return state_ == nullptr ? nullptr : state_->error();
}

double Fence::time() const {
  return state_ == nullptr ? 0 : state_->time();
}

Promise::Promise() : Promise(nullptr) {}
Promise::Promise(std::shared_ptr<VirtualClock> host) : state_(std::make_shared<detail::FenceState>(std::move(host))) {}

void Promise::complete(std::exception_ptr error, double time) {
  state_->complete(std::move(error), time);
}

}  // namespace tessera::base
