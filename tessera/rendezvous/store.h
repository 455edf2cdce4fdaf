// A small key-value store that all ranks of a run share. Ranks use the store to find each other before a backend is
// ready, and to exchange reports after the backend has failed.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace tessera::rendezvous {

// Any thread may use a connection. The calls on one connection run one after the other. Other calls can run while
// wait_for() or get() waits. All functions throw Error if the store cannot be reached, or if it does not answer within
// the limit of the connection. After such an error every call throws at once.
class Store {
 public:
  static constexpr std::size_t kLongestValue = std::size_t{8} << 20;  // largest number of bytes in a store of processes

  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Returns the value of `key`, or nullopt if the key is not set. Does not wait.
  virtual std::optional<std::string> find(const std::string& key) = 0;
  // Adds `amount` to the number stored under `key` and returns the sum. The number starts at 0. set() and find() must
  // not use the key of a number.
  virtual std::int64_t add(const std::string& key, std::int64_t amount) = 0;
  virtual void erase(const std::string& key) = 0;
  // Opens another connection to the same store.
  virtual std::shared_ptr<Store> connect() = 0;

  // Waits for the value of `key` and returns it. Returns nullopt if the key is not set after `limit`. May take longer
  // than `limit` by the time of one request.
  std::optional<std::string> wait_for(const std::string& key, std::chrono::milliseconds limit);
  // As wait_for, but throws Error if the key is not set after `limit`. Only tests call this function.
  std::string get(const std::string& key, std::chrono::milliseconds limit);
};

// Makes a store in this process's memory, for ranks that are threads. Only tests call this function.
std::shared_ptr<Store> make_memory_store();
// Returns `store` with `prefix` before every key.
std::shared_ptr<Store> make_prefix_store(std::shared_ptr<Store> store, const std::string& prefix);

}  // namespace tessera::rendezvous
