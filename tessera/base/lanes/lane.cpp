#include "tessera/base/lanes/lane.h"

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::base {
namespace {

class InlineLane final : public Lane {
 public:
  explicit InlineLane(std::shared_ptr<VirtualClock> host) : host_(std::move(host)) {}

  void run(std::function<void()> work) override { work(); }
  Fence record() override { return host_ == nullptr ? Fence() : record_timed(); }
  Fence record_timed() override {
    Promise promise(host_);
    promise.complete(nullptr, host_ == nullptr ? 0 : host_->now());
    return promise.fence();
  }
  void wait(const Fence& fence) override { fence.synchronize(); }
  VirtualClock* clock() override { return host_.get(); }

 private:
  const std::shared_ptr<VirtualClock> host_;
};

class ThreadLane final : public Lane {
 public:
  ThreadLane(const std::string& name, std::shared_ptr<VirtualClock> host)
      : host_(std::move(host)), thread_([this] { serve(); }) {
    pthread_setname_np(thread_.native_handle(), name.substr(0, 15).c_str());
  }
  ~ThreadLane() override {
    {
      std::lock_guard lock(mutex_);
      closing_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

  void run(std::function<void()> work) override { push({.work = std::move(work)}); }
  Fence record() override {
    Promise promise(host_);
    Fence fence = promise.fence();
    push({.fence = std::move(promise)});
    return fence;
  }
  void wait(const Fence& fence) override {
    if (host_ == nullptr && fence.done() && !fence.error()) return;
    run([this, fence] {
      fence.wait();
      time_.raise_to(fence.time());
    });
  }
  VirtualClock* clock() override { return host_ == nullptr ? nullptr : &time_; }

 private:
  // Either work or a fence.
  struct Item {
    std::function<void()> work = {};
    std::optional<Promise> fence = {};
    double enqueued = 0;  // time of the host at the enqueue
  };

  void push(Item item) {
    if (host_ != nullptr) item.enqueued = host_->now();
    {
      std::lock_guard lock(mutex_);
      queue_.push_back(std::move(item));
    }
    changed_.notify_one();
  }

  void serve() {
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return closing_ || !queue_.empty(); });
      if (queue_.empty()) return;
      Item item = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      perform(item);
    }
  }

  void perform(Item& item) {
    time_.raise_to(item.enqueued);
    if (item.fence) return item.fence->complete(error_, time_.now());
    if (error_) return;
    try {
      item.work();
    } catch (...) {
      error_ = std::current_exception();
    }
  }

  const std::shared_ptr<VirtualClock> host_;
  VirtualClock time_;  // used only by the worker thread and its work
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> queue_;
  bool closing_ = false;
  std::exception_ptr error_;  // used only by the worker thread
  std::thread thread_;        // last member: the thread starts when the other members are ready
};

}  // namespace

void Lane::capture(const std::shared_ptr<const Capture>& /*capture*/) {
  throw Error("a lane without a stream cannot be captured");
}

void Lane::delay(double seconds) {
  TESSERA_CHECK(seconds >= 0, "delay: expected 0 seconds or more, got {}", seconds);
  run([seconds, clock = clock()] {
    if (clock != nullptr)
      clock->advance(seconds);
    else
      std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  });
}

std::unique_ptr<Lane> make_inline_lane(std::shared_ptr<VirtualClock> host) {
  return std::make_unique<InlineLane>(std::move(host));
}
std::unique_ptr<Lane> make_thread_lane(const std::string& name, std::shared_ptr<VirtualClock> host) {
  return std::make_unique<ThreadLane>(name, std::move(host));
}

}  // namespace tessera::base
