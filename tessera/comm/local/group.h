// Where the members of one group of rank threads meet.
#pragma once
#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tessera/comm/operation.h"

namespace tessera::comm {

// Why a run of local ranks is over: what every operation of every rank fails with from then on.
struct LocalFailure {
  int rank = 0;  // world rank that failed
  std::string what;
  std::exception_ptr error;
};

// Thrown to a member whose own communicator is being unwound: not a failure of its own.
struct MemberCancelled {};

// Shared by the members. Operation number n of every member meets in slot n % 2: a member comes to n + 2 only when all
// have come to n + 1, so all have left n.
class LocalGroup {
 public:
  LocalGroup(std::string name, std::vector<int> members, std::chrono::milliseconds timeout);

  const std::string& name() const { return name_; }
  const std::vector<int>& members() const { return members_; }

  // Every pending and later operation fails with it. The first one counts.
  void fail(std::shared_ptr<const LocalFailure> failure);
  // Operations of this member fail at once with MemberCancelled; the peers go on waiting for the cause.
  void cancel(int member);
  // The member's communicator is gone: whoever waits for it fails at once.
  void leave(int member);
  // Sleeps, and wakes early when the run fails or the member is cancelled.
  void sleep_until(int member, std::chrono::steady_clock::time_point time);

 private:
  friend class MatchedOperation;
  using Deadline = std::chrono::steady_clock::time_point;

  // One operation. `reached[m]`: phases that member m has come to the end of. A phase is over when all members have.
  // `active`: members that may be reading the others' buffers; nobody who posted a buffer leaves before it is 0.
  struct Slot {
    std::int64_t sequence = -1;
    int phase = 0, arrived = 0, active = 0;
    std::vector<int> reached;
    std::vector<const Operation*> operations;
    std::vector<double> times;  // of the members' lanes, virtual
  };

  void open(Slot& slot, std::int64_t sequence);
  void advance(Slot& slot, bool readers_follow);
  bool ended(int member) const {
    return failure_ != nullptr || left_ >= 0 || cancelled_[static_cast<std::size_t>(member)];
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
  int left_ = -1;        // a world rank that has left
  bool broken_ = false;  // a member gave up: no phase ends any more
};

// One member in one operation. Construction posts the operation and waits for all members; between it and finish() the
// member may read what the others posted. Errors, all thrown: time limit (names the members that did not come), a
// peer's failure, MemberCancelled. Left by an exception, the group breaks.
class MatchedOperation {
 public:
  // `time` is the virtual time of the member's lane.
  MatchedOperation(LocalGroup& group, int member, std::int64_t sequence, const Operation& operation, double time);
  ~MatchedOperation();
  MatchedOperation(const MatchedOperation&) = delete;
  MatchedOperation& operator=(const MatchedOperation&) = delete;

  const Operation& operation_of(int member) const { return *slot_.operations[static_cast<std::size_t>(member)]; }
  // When the last member has come, in virtual time.
  double begin() const { return *std::max_element(slot_.times.begin(), slot_.times.end()); }
  // Waits until all members are here; what they wrote before may be read after.
  void synchronize() { wait_for_all(true); }
  // The last wait: afterwards nobody reads this member's buffers.
  void finish() { wait_for_all(false); }

 private:
  void wait_for_all(bool readers_follow);

  LocalGroup& group_;
  const int member_;
  LocalGroup::Slot& slot_;
  const LocalGroup::Deadline deadline_;
  bool active_ = false;
};

}  // namespace tessera::comm
