// What the ranks of a run tell each other of failures, by way of its store.
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

// A failure as the rank that sees it tells it.
struct FailureReport {
  struct State {
    std::string group;  // its name in the store
    std::string text;   // what this rank does there
  };
  std::vector<State> states;
  std::string cause;       // empty where another rank has told it
  std::string group;       // where it failed
  std::vector<int> peers;  // whose states of `group` to ask for
};

// Any thread. One of its own talks to the store, so that nobody waits for a store that does not answer.
class FailureExchange {
 public:
  // `store`: a connection of its own, under a prefix of the run's.
  explicit FailureExchange(std::shared_ptr<Store> store, int rank);
  // Waits for a call under way, to its limit.
  ~FailureExchange();
  FailureExchange(const FailureExchange&) = delete;
  FailureExchange& operator=(const FailureExchange&) = delete;

  // The cause that a rank has told of, asked for every 200 ms. Touches memory only.
  std::optional<std::string> received() const;
  // Tells, and asks the peers, who have a second. What they say ("ranks 0,3: at graph #12; rank 2: no answer"), empty
  // where none was asked, or that the store is gone; within 2 s. The first cause that a rank tells stays. One call at a
  // time.
  std::string report(FailureReport failure);

 private:
  void serve();
  bool listen();
  std::string exchange(const FailureReport& report);

  const std::shared_ptr<Store> store_;
  const int rank_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<std::packaged_task<std::string()>> pending_;  // to be done
  std::optional<std::string> received_;
  bool closing_ = false;
  std::thread thread_;  // last: starts when all else is ready
};

}  // namespace tessera::rendezvous
