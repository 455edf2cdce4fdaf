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

// A failure, as reported by a rank that detects it or receives it.
struct FailureReport {
  struct State {
    std::string group;  // the group's name in the store
    std::string text;   // this rank's state in the group
  };
  std::vector<State> states;
  std::string cause;       // empty: another rank has reported the cause
  std::string group;       // the group that failed
  std::vector<int> peers;  // the ranks whose states in `group` are requested
};

// Any thread may use it. A thread of the object accesses the store, so that callers do not wait for a store that does
// not answer.
class FailureExchange {
 public:
  // `store` is a separate connection, with a prefix of the run's keys.
  explicit FailureExchange(std::shared_ptr<Store> store, int rank);
  // Waits for a pending call to the store, up to the call's time limit.
  ~FailureExchange();
  FailureExchange(const FailureExchange&) = delete;
  FailureExchange& operator=(const FailureExchange&) = delete;

  // Returns the cause of a failure that some rank has reported. The thread reads reports from the store every 200 ms;
  // this function only accesses memory.
  std::optional<std::string> received() const;
  // Reports a failure and requests the states of the peers, which have one second to answer. Returns the peers'
  // answers, e.g. "ranks 0,3: at graph #12; rank 2: no answer". Returns an empty string if `peers` is empty, and a text
  // about the store if the store cannot be reached. Takes at most 2 s. If several ranks report a cause, the first one
  // is kept. Call it from one thread at a time.
  std::string report(FailureReport failure);

 private:
  void serve();
  bool listen();
  std::string exchange(const FailureReport& report);

  const std::shared_ptr<Store> store_;
  const int rank_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<std::packaged_task<std::string()>> pending_;  // for the thread
  std::optional<std::string> received_;
  bool closing_ = false;
  std::thread thread_;  // the last member: it starts when the others are initialised
};

}  // namespace tessera::rendezvous
