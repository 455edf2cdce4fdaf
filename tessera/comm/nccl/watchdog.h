// The thread of a process that watches all NCCL operations. The watchdog detects time limits, asynchronous errors and
// failures of other ranks.
#pragma once
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tessera/base/cuda_stream.h"
#include "tessera/base/lanes/cuda_lane.h"
#include "tessera/comm/nccl/channel.h"
#include "tessera/comm/operation.h"
#include "tessera/rendezvous/boards/failure_exchange.h"

struct CUevent_st;

namespace tessera::comm {

// The pending operations of one group.
class NcclWatch {
 public:
  // `key` is the name of the group in the store. All members of the group pass the same key.
  NcclWatch(GroupIdentity group, std::string key, base::Device device, std::shared_ptr<NcclChannel> channel,
            std::shared_ptr<base::LaneFaults> faults);
  ~NcclWatch();
  NcclWatch(const NcclWatch&) = delete;
  NcclWatch& operator=(const NcclWatch&) = delete;

  // The caller calls begin() before it enqueues an operation, and end() afterwards. Operations on a captured stream are
  // not watched. `what` must outlive this object. If the operation is a graph, `graph` is the time that is added to the
  // time limit.
  void begin(std::string_view what, std::int64_t sequence, base::CudaStream stream,
             std::optional<std::chrono::milliseconds> graph = {});
  void end(base::CudaStream stream);

  // Called by the watchdog. Returns the problem as the end of a sentence of an error message, or an empty string if
  // there is no problem. `beside_graph` is true if the device runs a graph of this process. The time limit of other
  // operations then starts after the graph, because the device may not run these operations earlier.
  std::string poll(std::chrono::milliseconds timeout, bool beside_graph);
  // Returns whether the device runs a graph of this group, as far as the last poll() detected. The graph has its own
  // time limit.
  bool runs_graph();
  // Returns the label of the oldest pending operation, e.g. "all_gather #12 on gtp[0,1], rank 0". Returns an empty
  // string if no operation is pending.
  std::string label() const;
  // Returns the state of this rank in the group, as text for its peers.
  std::string state() const;
  // Makes all pending and later operations fail with `error`. Only the first call has an effect. Does not wait.
  void fail(const std::exception_ptr& error);
  // Called after fail(). Begins to abort the pending work on the device.
  void abort();
  // Sets an action that abort() also runs, on a separate thread.
  void at_abort(std::function<void()> action);
  bool failed() const;

  const GroupIdentity& group() const { return group_; }
  const std::string& key() const { return key_; }

 private:
  struct Pending {
    std::string_view what;
    std::int64_t sequence = 0, position = 0;
    std::optional<std::chrono::milliseconds> graph;
    CUevent_st *began = nullptr, *ended = nullptr;
    bool is_enqueued = false, is_running = false;
    base::RunningClock::time_point running_since;
  };
  CUevent_st* take_event();
  std::string label_of(const Pending& one) const;
  void remove_ended();

  const GroupIdentity group_;
  const std::string key_;
  const base::Device device_;
  const std::shared_ptr<NcclChannel> channel_;
  const std::shared_ptr<base::LaneFaults> faults_;
  mutable std::mutex mutex_;
  std::deque<Pending> pending_;
  std::vector<CUevent_st*> free_;
  std::string last_;  // the operation that finished last
  std::string device_error_;
  std::function<void()> at_abort_;
  bool failed_ = false;
};

class NcclWatchdog {
 public:
  using OnFailure = std::function<void(const std::string&)>;
  // `store` is a connection to the run's store that only the watchdog uses. If the store does not answer, the report of
  // a failure is delayed by 2 s. The watchdog's thread polls events of `device`. `on_failure` is
  // NcclOptions::on_failure.
  NcclWatchdog(std::shared_ptr<rendezvous::Store> store, int rank, base::Device device,
               std::chrono::milliseconds timeout, OnFailure on_failure);
  ~NcclWatchdog();
  NcclWatchdog(const NcclWatchdog&) = delete;
  NcclWatchdog& operator=(const NcclWatchdog&) = delete;

  void add(const std::shared_ptr<NcclWatch>& watch);
  void remove(const std::shared_ptr<NcclWatch>& watch);
  // Reports that the operation `label` could not be enqueued. Every group fails. Returns the error that the fences of
  // the operation's group store.
  std::exception_ptr report(const std::shared_ptr<NcclWatch>& watch, const std::string& label,
                            const std::string& problem);
  // Returns the first failure, or null if no failure occurred.
  std::exception_ptr failure() const;
  // Waits for the value of `key` in the store and returns the value. Throws Error if the deadline passes. Throws the
  // first failure if an operation fails meanwhile.
  std::string await(rendezvous::Store& store, const std::string& key, NcclDeadline deadline) const;

 private:
  void serve();
  void poll();
  // `failed_watch` is the group that failed, or null if another rank reported the cause.
  std::exception_ptr fail_all(const std::shared_ptr<NcclWatch>& failed_watch, std::string text);
  std::string report_to_peers(const std::vector<std::shared_ptr<NcclWatch>>& all, const NcclWatch* failed_watch,
                              std::string cause);
  std::vector<std::shared_ptr<NcclWatch>> watches() const;

  const int rank_;
  const std::chrono::milliseconds timeout_;
  const OnFailure on_failure_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::list<std::shared_ptr<NcclWatch>> watches_;
  std::mutex failing_;  // held while a failure is handled
  std::exception_ptr failure_;
  bool closing_ = false;
  rendezvous::FailureExchange failures_;
  std::thread thread_;  // declared last: the thread starts when the other members are initialised
};

}  // namespace tessera::comm
