#include "tessera/base/lanes/fence.h"

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "tessera/base/error.h"
#include "tessera/base/lanes/fence_state.h"
#include "tessera/base/lanes/host_waits.h"

namespace tessera::base {
namespace {

std::atomic<std::int64_t> waits_so_far = 0;

}  // namespace

std::int64_t host_waits() {
  return waits_so_far;
}

namespace detail {

class HostFence final : public FenceState {
 public:
  explicit HostFence(std::shared_ptr<VirtualClock> host) : host_(std::move(host)) {}

  bool done() const override {
    std::lock_guard lock(mutex_);
    return done_;
  }
  void wait() const override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return done_; });
  }
  bool wait_for(std::chrono::nanoseconds limit) const override {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, limit, [this] { return done_; });
  }
  std::exception_ptr error() const override {
    std::lock_guard lock(mutex_);
    return error_;
  }
  double time() const override {
    std::lock_guard lock(mutex_);
    return time_;
  }
  void raise_host() const override {
    if (host_ != nullptr) host_->raise_to(time());
  }
  std::optional<double> seconds_since(const FenceState& earlier) const override {
    const auto* other = dynamic_cast<const HostFence*>(&earlier);
    if (other == nullptr || !done() || !other->done()) return std::nullopt;
    if (host_ != nullptr) return time() - other->time();
    return std::chrono::duration<double>(completed_ - other->completed_).count();
  }
  void complete(std::exception_ptr error, double time) {
    {
      std::lock_guard lock(mutex_);
      if (done_) return;
      done_ = true;
      error_ = std::move(error);
      time_ = time;
      completed_ = std::chrono::steady_clock::now();
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
  std::chrono::steady_clock::time_point completed_;  // written once, before done_ is visible
};

}  // namespace detail

bool Fence::done() const {
  return state_ == nullptr || state_->done();
}

void Fence::synchronize() const {
  if (state_ == nullptr) return;
  ++waits_so_far;
  state_->wait();
  state_->raise_host();
  if (auto error = state_->error()) std::rethrow_exception(error);
}

void Fence::wait() const {
  if (state_ == nullptr) return;
  ++waits_so_far;
  state_->wait();
  if (auto error = state_->error()) std::rethrow_exception(error);
}

bool Fence::wait_for(std::chrono::nanoseconds limit) const {
  if (state_ == nullptr) return true;
  const bool is_done = state_->wait_for(limit);
  if (is_done) ++waits_so_far;
  return is_done;
}

void Fence::wait_until_done() const {
  while (!wait_for(std::chrono::hours(1))) continue;
}

std::exception_ptr Fence::error() const {
  return state_ == nullptr ? nullptr : state_->error();
}

double Fence::time() const {
  return state_ == nullptr ? 0 : state_->time();
}

double Fence::seconds_since(const Fence& earlier) const {
  if (!done() || !earlier.done()) throw Error("seconds_since: expected two fences that are done");
  const auto seconds =
      state_ == nullptr || earlier.state_ == nullptr ? std::nullopt : state_->seconds_since(*earlier.state_);
  if (!seconds) throw Error("seconds_since: expected two fences of record_timed() on one kind of device");
  return *seconds;
}

Promise::Promise() : Promise(nullptr) {}
Promise::Promise(std::shared_ptr<VirtualClock> host) : state_(std::make_shared<detail::HostFence>(std::move(host))) {}

Fence Promise::fence() const {
  return Fence(state_);
}

void Promise::complete(std::exception_ptr error, double time) {
  state_->complete(std::move(error), time);
}

}  // namespace tessera::base
