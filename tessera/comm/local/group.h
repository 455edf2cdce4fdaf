// Synchronizes the members of one group of rank threads.
#pragma once
#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tessera/base/process/running_clock.h"
#include "tessera/comm/operation.h"

namespace tessera::comm {

// The failure that ended a run of local ranks. Every later operation of every rank fails with the first failure.
struct LocalFailure {
  int rank = 0;  // the world rank that failed
  std::string what;
  std::exception_ptr error;
};

// Thrown in a member whose own communicator is being destroyed by an exception. The member itself did not cause a
// failure.
struct MemberCancelled {};

// Shared by the members. The operations with sequence number n use slot n % 2. A member starts operation n + 2 only
// after all members have started n + 1, so every member has left operation n.
class LocalGroup {
 public:
  LocalGroup(std::string name, std::vector<int> members, std::chrono::milliseconds timeout);

  const std::string& name() const { return name_; }
  const std::vector<int>& members() const { return members_; }

  // Makes all pending and later operations fail with `failure`. Later calls do not replace the first failure.
  void fail(std::shared_ptr<const LocalFailure> failure);
  // Makes operations of this member fail at once with MemberCancelled. The peers continue to wait until fail() is
  // called with the cause.
  void cancel(int member);
  // Called when the member's communicator is destroyed. Members that wait for this member fail at once.
  void leave(int member);
  // Sleeps until `time`. Returns early if the run fails or the member is cancelled.
  void sleep_until(int member, std::chrono::steady_clock::time_point time);

 private:
  friend class MatchedOperation;
  using Deadline = base::RunningClock::time_point;

  // The state of one operation. A phase ends when all members have reached its end. `reached[m]` is the number of
  // phases whose end member m has reached. `active` is the number of members that may be reading the buffers of other
  // members. A member that posted a buffer leaves the operation only when `active` is 0.
  struct Slot {
    std::int64_t sequence = -1;
    int phase = 0, arrived = 0, active = 0;
    bool executed = false;  // whether the last member that arrived executed the operation for all members
    std::vector<int> reached;
    std::vector<const Operation*> operations;
    std::vector<double> times;  // virtual times of the members' lanes
  };

  void open(Slot& slot, std::int64_t sequence);
  void advance(Slot& slot, bool readers_follow);
  bool ended(int member) const {
    return failure_ != nullptr || left_ >= 0 || cancelled_[static_cast<std::size_t>(member)];
  }
  // Returns whether an operation may never finish, because the run failed or a member left or was cancelled.
  bool disturbed() const {
    return broken_ || failure_ != nullptr || left_ >= 0 || std::ranges::find(cancelled_, true) != cancelled_.end();
  }
  [[noreturn]] void throw_reason(int member) const;
  std::string missing(const Slot& slot, int phase) const;

  const std::string name_;
  const std::vector<int> members_;
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::array<Slot, 2> slots_;
  std::shared_ptr<const LocalFailure> failure_;
  std::vector<bool> cancelled_;
  int left_ = -1;        // world rank of the first member that left; -1: all are present
  bool broken_ = false;  // whether a member left an operation early, so that later phases do not end
};

// One member's part in one operation. The constructor posts the operation, and start() waits for all members. Until
// finish(), this member may read the buffers that the other members posted. All waits throw Error if the time limit
// passes (the message contains the missing members), or if a peer has failed. All waits throw MemberCancelled if this
// member is cancelled. If an exception destroys the object before finish(), the group is broken.
class MatchedOperation {
 public:
  // `time` is the virtual time of this member's lane.
  MatchedOperation(LocalGroup& group, int member, std::int64_t sequence, const Operation& operation, double time);
  ~MatchedOperation();
  MatchedOperation(const MatchedOperation&) = delete;
  MatchedOperation& operator=(const MatchedOperation&) = delete;

  // The first wait. The last member that arrives calls `together` while the other members wait. If `together` returns
  // true, it has executed the operation for all members. Then start() returns true on every member, and the operation
  // is over: no member waits again or reads a posted operation. So a small operation needs one wait instead of two.
  bool start(const std::function<bool()>& together);
  const Operation& operation_of(int member) const { return *slot_.operations[static_cast<std::size_t>(member)]; }
  // Returns the virtual time at which the last member joined.
  double begin() const { return *std::max_element(slot_.times.begin(), slot_.times.end()); }
  // Waits for all members. Data that the members wrote before the wait may be read after the wait.
  void synchronize() { wait_for_all(true); }
  // The last wait. After the wait no peer reads this member's buffers.
  void finish() { wait_for_all(false); }

 private:
  void wait_for_all(bool readers_follow);
  void wait_for_end(std::unique_lock<std::mutex>& lock, int phase);

  LocalGroup& group_;
  const int member_;
  LocalGroup::Slot& slot_;
  const LocalGroup::Deadline deadline_;
  bool active_ = false;
};

}  // namespace tessera::comm
