#include "tessera/base/lane.h"

#include <pthread.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

namespace tessera::base {
namespace {

class InlineLane final : public Lane {
 public:
  void run(std::function<void()> work) override { work(); }
  Fence record() override { return {}; }
  void wait(const Fence& fence) override { fence.synchronize(); }
};

class ThreadLane final : public Lane {
 public:
  explicit ThreadLane(const std::string& name) : thread_([this] { serve(); }) {
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

  void run(std::function<void()> work) override { push(Item{std::move(work), {}, false}); }
  Fence record() override {
    Promise promise;
    Fence fence = promise.fence();
    push(Item{{}, std::move(promise), true});
    return fence;
  }
  void wait(const Fence& fence) override {
    if (fence.done() && !fence.error()) return;
    run([fence] { fence.synchronize(); });
  }

 private:
  struct Item {
    std::function<void()> work;
    Promise promise;
    bool is_fence;
  };

  void push(Item item) {
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
    if (item.is_fence) return item.promise.complete(error_);
    if (error_) return;
    try {
      item.work();
    } catch (...) {
      error_ = std::current_exception();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> queue_;
  bool closing_ = false;
  std::exception_ptr error_;  // only the worker thread touches it
  std::thread thread_;        // last: starts when all else is ready
};

}  // namespace

std::unique_ptr<Lane> make_inline_lane() {
  return std::make_unique<InlineLane>();
}
std::unique_ptr<Lane> make_thread_lane(std::string name) {
  return std::make_unique<ThreadLane>(name);
}

}  // namespace tessera::base
