// A small key-value store that all ranks of a run share: where they find each other before a backend is up, and after
// it has failed.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace tessera::rendezvous {

// Any thread may use it; the calls of one connection run one after the other, and none keeps it while it waits. All
// throw Error when the store cannot be reached, or does not answer within the limit that its maker states; after that
// they throw at once.
class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Nothing where the key has not been set. Does not wait.
  virtual std::optional<std::string> find(const std::string& key) = 0;
  // Adds to the number under `key`, 0 at first, and returns the sum. Such keys are for add() alone.
  virtual std::int64_t add(const std::string& key, std::int64_t amount) = 0;
  virtual void erase(const std::string& key) = 0;
  // Another connection to the same store.
  virtual std::shared_ptr<Store> connect() = 0;

  // The value of `key`, waited for up to `limit` and the last answer; nothing when it does not come.
  std::optional<std::string> wait_for(const std::string& key, std::chrono::milliseconds limit);
  // The same. Errors: it does not come. Only tests call it.
  std::string get(const std::string& key, std::chrono::milliseconds limit);
};

// In this process's memory: for ranks that are threads. Only tests call it.
std::shared_ptr<Store> make_memory_store();
// `store` with every key under `prefix`.
std::shared_ptr<Store> make_prefix_store(std::shared_ptr<Store> store, const std::string& prefix);

}  // namespace tessera::rendezvous
