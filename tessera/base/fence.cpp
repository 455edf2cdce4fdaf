#include "tessera/base/fence.h"

#include <condition_variable>
#include <mutex>

namespace tessera::base {
namespace detail {

class FenceState {
 public:
  bool done() const {
    std::lock_guard lock(mutex_);
    return done_;
  }
  void wait() const {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return done_; });
  }
  std::exception_ptr error() const {
    std::lock_guard lock(mutex_);
    return error_;
  }
  void complete(std::exception_ptr error) {
    {
      std::lock_guard lock(mutex_);
      if (done_) return;
      done_ = true;
      error_ = std::move(error);
    }
    changed_.notify_all();
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool done_ = false;
  std::exception_ptr error_;
};

}  // namespace detail

bool Fence::done() const {
  return state_ == nullptr || state_->done();
}

void Fence::synchronize() const {
  if (state_ == nullptr) return;
  state_->wait();
  if (auto error = state_->error()) std::rethrow_exception(error);
}

std::exception_ptr Fence::error() const {
  return state_ == nullptr ? nullptr : state_->error();
}

Promise::Promise() : state_(std::make_shared<detail::FenceState>()) {}

void Promise::complete(std::exception_ptr error) {
  state_->complete(std::move(error));
}

}  // namespace tessera::base
