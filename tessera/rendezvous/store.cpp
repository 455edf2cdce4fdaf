#include "tessera/rendezvous/store.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/process/running_clock.h"

namespace tessera::rendezvous {
namespace {

using std::chrono::milliseconds;

struct SharedEntries {
  std::mutex mutex;
  std::map<std::string, std::string> values;
  std::map<std::string, std::int64_t> numbers;
};

class MemoryStore final : public Store {
 public:
  explicit MemoryStore(std::shared_ptr<SharedEntries> entries) : entries_(std::move(entries)) {}

  void set(const std::string& key, const std::string& value) override {
    std::lock_guard lock(entries_->mutex);
    entries_->values[key] = value;
  }
  std::optional<std::string> find(const std::string& key) override {
    std::lock_guard lock(entries_->mutex);
    const auto found = entries_->values.find(key);
    return found == entries_->values.end() ? std::nullopt : std::optional(found->second);
  }
  std::int64_t add(const std::string& key, std::int64_t amount) override {
    std::lock_guard lock(entries_->mutex);
    return entries_->numbers[key] += amount;
  }
  void erase(const std::string& key) override {
    std::lock_guard lock(entries_->mutex);
    entries_->values.erase(key);
    entries_->numbers.erase(key);
  }
  std::shared_ptr<Store> connect() override { return std::make_shared<MemoryStore>(entries_); }

 private:
  const std::shared_ptr<SharedEntries> entries_;
};

class PrefixStore final : public Store {
 public:
  PrefixStore(std::shared_ptr<Store> store, std::string prefix)
      : store_(std::move(store)), prefix_(std::move(prefix)) {}

  void set(const std::string& key, const std::string& value) override { store_->set(prefix_ + key, value); }
  std::optional<std::string> find(const std::string& key) override { return store_->find(prefix_ + key); }
  std::int64_t add(const std::string& key, std::int64_t amount) override { return store_->add(prefix_ + key, amount); }
  void erase(const std::string& key) override { store_->erase(prefix_ + key); }
  std::shared_ptr<Store> connect() override { return std::make_shared<PrefixStore>(store_->connect(), prefix_); }

 private:
  const std::shared_ptr<Store> store_;
  const std::string prefix_;
};

}  // namespace

std::optional<std::string> Store::wait_for(const std::string& key, milliseconds limit) {
  const auto end = base::RunningClock::now() + limit;
  for (milliseconds pause(1);; pause = std::min(pause * 2, milliseconds(20))) {
    if (auto value = find(key)) return value;
    const auto left = end - base::RunningClock::now();
    if (left <= left.zero()) return std::nullopt;
    std::this_thread::sleep_for(std::min<base::RunningClock::duration>(pause, left));
  }
}

std::string Store::get(const std::string& key, milliseconds limit) {
  if (auto value = wait_for(key, limit)) return *value;
  throw Error("store: no '{}' within {} ms", key, limit.count());
}

std::shared_ptr<Store> make_memory_store() {
  return std::make_shared<MemoryStore>(std::make_shared<SharedEntries>());
}

std::shared_ptr<Store> make_prefix_store(std::shared_ptr<Store> store, const std::string& prefix) {
  return std::make_shared<PrefixStore>(std::move(store), prefix);
}

}  // namespace tessera::rendezvous
