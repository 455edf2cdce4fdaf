// The thread of a process that looks after all NCCL operations: time limits, errors that come later, failures
// elsewhere.
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

#include "tessera/base/cuda_lane.h"
#include "tessera/base/cuda_stream.h"
#include "tessera/comm/nccl/channel.h"
#include "tessera/comm/operation.h"
#include "tessera/rendezvous/failure_exchange.h"

struct CUevent_st;

namespace tessera::comm {

// The operations of one group that have not ended.
class NcclWatch {
 public:
  // `key`: the group's name in the store, the same on every member.
  NcclWatch(GroupIdentity group, std::string key, base::Device device, std::shared_ptr<NcclChannel> channel,
            std::shared_ptr<base::LaneFaults> faults);
  ~NcclWatch();
  NcclWatch(const NcclWatch&) = delete;
  NcclWatch& operator=(const NcclWatch&) = delete;

  // Around the enqueueing of an operation; a capturing stream is not watched. what: outlives the watch. graph: of a
  // graph, what is added to its time limit.
  void begin(std::string_view what, std::int64_t sequence, base::CudaStream stream,
             std::optional<std::chrono::milliseconds> graph = {});
  void end(base::CudaStream stream);

  // For the watchdog. What is wrong, as the end of a sentence; empty where all is well. beside_graph: the device runs a
  // graph of this process. It may run other operations only after the graph, so their time begins then.
  std::string look(std::chrono::milliseconds timeout, bool beside_graph);
  // Whether the device is known to run a graph of this group, which has a time limit of its own.
  bool runs_graph();
  // "all_gather #12 on gtp[0,1], rank 0", of the first operation that has not ended; without one, empty.
  std::string label() const;
  // What this rank does in the group, for its peers.
  std::string state() const;
  // Everything that has not ended, and all that is called from now on, fails with `error`. The first call counts. Does
  // not wait.
  void fail(const std::exception_ptr& error);
  // After fail: begins to end what is under way on the device.
  void abort();
  // Done at abort too, by a thread of its own.
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
    std::chrono::steady_clock::time_point running_since;
  };
  CUevent_st* take_event();
  std::string label_of(const Pending& one) const;
  void forget_ended();

  const GroupIdentity group_;
  const std::string key_;
  const base::Device device_;
  const std::shared_ptr<NcclChannel> channel_;
  const std::shared_ptr<base::LaneFaults> faults_;
  mutable std::mutex mutex_;
  std::deque<Pending> pending_;
  std::vector<CUevent_st*> free_;
  std::string last_;  // the operation that ended last
  std::string device_error_;
  std::function<void()> at_abort_;
  bool failed_ = false;
};

class NcclWatchdog {
 public:
  using OnFailure = std::function<void(const std::string&)>;
  // `store`: a connection of its own; one that does not answer delays a failure by 2 s. device: whose events
  // its thread looks at. on_failure: NcclOptions'.
  NcclWatchdog(std::shared_ptr<rendezvous::Store> store, int rank, base::Device device,
               std::chrono::milliseconds timeout, OnFailure on_failure);
  ~NcclWatchdog();
  NcclWatchdog(const NcclWatchdog&) = delete;
  NcclWatchdog& operator=(const NcclWatchdog&) = delete;

  void add(const std::shared_ptr<NcclWatch>& watch);
  void remove(const std::shared_ptr<NcclWatch>& watch);
  // An operation, `label`, could not be enqueued: every group fails. Returns what its fences carry.
  std::exception_ptr report(const std::shared_ptr<NcclWatch>& watch, const std::string& label,
                            const std::string& problem);
  // Null while all is well.
  std::exception_ptr failure() const;
  // The value of `key`, waited for. Errors: the deadline, a failure meanwhile.
  std::string await(rendezvous::Store& store, const std::string& key, NcclDeadline deadline) const;

 private:
  void serve();
  void look();
  // `culprit`: null where the cause is another rank's.
  std::exception_ptr fail_all(const std::shared_ptr<NcclWatch>& culprit, std::string text);
  std::string tell(const std::vector<std::shared_ptr<NcclWatch>>& all, const NcclWatch* culprit, std::string cause);
  std::vector<std::shared_ptr<NcclWatch>> watches() const;

  const int rank_;
  const std::chrono::milliseconds timeout_;
  const OnFailure on_failure_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::list<std::shared_ptr<NcclWatch>> watches_;
  std::mutex failing_;  // one failure at a time
  std::exception_ptr failure_;
  bool closing_ = false;
  rendezvous::FailureExchange failures_;
  std::thread thread_;  // last: starts when all else is ready
};

}  // namespace tessera::comm
