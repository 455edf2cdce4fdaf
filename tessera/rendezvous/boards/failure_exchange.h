// Exchanges reports of failures between the ranks of a run, through the run's store.
#pragma once
#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tessera/rendezvous/store.h"

namespace tessera::rendezvous {

// The report of a rank that has detected a failure, or that has received the report of another rank.
struct FailureReport {
  struct State {
    std::string group;  // the group's name in the store
    std::string text;   // state of the reporting rank in the group
  };
  std::vector<State> states;
  std::string cause;       // cause of the failure; empty if another rank has reported the cause
  std::string group;       // the group that failed
  std::vector<int> peers;  // the ranks whose states in `group` are requested
};

// Any thread may use the object. The object has its own thread, which accesses the store, so callers do not wait for a
// store that does not answer.
class FailureExchange {
 public:
  // `store` is a separate connection to the run's store. Its prefix separates the keys from those of other users.
  explicit FailureExchange(std::shared_ptr<Store> store, int rank);
  // Waits for a pending call to the store, up to the call's time limit.
  ~FailureExchange();
  FailureExchange(const FailureExchange&) = delete;
  FailureExchange& operator=(const FailureExchange&) = delete;

  // Returns the cause of a failure that some rank has reported, or nullopt. The object's thread reads reports from the
  // store every 200 ms. Texts of other ranks are cut after some kilobytes, and control characters are escaped. This
  // function does not access the store.
  std::optional<std::string> received() const;
  // Reports a failure and requests the states of the peers, which have one second to answer. Returns the peers'
  // answers, e.g. "ranks 0,3: at graph #12; rank 2: no answer". Returns an empty string if `peers` is empty. Returns a
  // text about the store if the store cannot be reached. Takes at most 2 s. If several ranks report a cause, the store
  // keeps the first cause. Call this function from one thread at a time.
  std::string report(FailureReport failure);

 private:
  void serve();
  bool listen();
  std::string exchange(const FailureReport& report);

  const std::shared_ptr<Store> store_;
  const int rank_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<std::packaged_task<std::string()>> pending_;  // report that thread_ has not sent yet
  std::optional<std::string> received_;
  bool closing_ = false;
  std::thread thread_;  // the last member, so that the thread starts after all other members are initialised
};

}  // namespace tessera::rendezvous
