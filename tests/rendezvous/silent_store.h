// A store for tests. While it is silenced, its calls do not return.
#pragma once
#include <condition_variable>
#include <memory>
#include <mutex>

#include "tessera/rendezvous/store.h"

namespace tessera::rendezvous {

class Silence {
 public:
  void begin() { set(true); }
  void end() { set(false); }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !is_silent_; });
  }

 private:
  void set(bool is_silent) {
    {
      std::lock_guard lock(mutex_);
      is_silent_ = is_silent;
    }
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_silent_ = false;
};

class SilentStore final : public Store {
 public:
  SilentStore(std::shared_ptr<Store> store, std::shared_ptr<Silence> silence)
      : store_(std::move(store)), silence_(std::move(silence)) {}
  void set(const std::string& key, const std::string& value) override { there().set(key, value); }
  std::optional<std::string> find(const std::string& key) override { return there().find(key); }
  std::int64_t add(const std::string& key, std::int64_t amount) override { return there().add(key, amount); }
  void erase(const std::string& key) override { there().erase(key); }
  std::shared_ptr<Store> connect() override { return std::make_shared<SilentStore>(there().connect(), silence_); }

 private:
  Store& there() {
    silence_->wait();
    return *store_;
  }
  const std::shared_ptr<Store> store_;
  const std::shared_ptr<Silence> silence_;
};

}  // namespace tessera::rendezvous
