#include "tessera/comm/local/group.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::comm {

LocalGroup::LocalGroup(std::string name, std::vector<int> members, std::chrono::milliseconds timeout)
    : name_(std::move(name)), members_(std::move(members)), timeout_(timeout), cancelled_(members_.size()) {
  for (Slot& slot : slots_) {
    slot.reached.resize(members_.size());
    slot.operations.resize(members_.size());
    slot.times.resize(members_.size());
  }
}

void LocalGroup::fail(std::shared_ptr<const LocalFailure> failure) {
  {
    std::lock_guard lock(mutex_);
    if (failure_ == nullptr) failure_ = std::move(failure);
  }
  changed_.notify_all();
}

void LocalGroup::cancel(int member) {
  {
    std::lock_guard lock(mutex_);
    cancelled_[static_cast<std::size_t>(member)] = true;
  }
  changed_.notify_all();
}

void LocalGroup::leave(int member) {
  {
    std::lock_guard lock(mutex_);
    if (left_ < 0) left_ = members_[static_cast<std::size_t>(member)];
  }
  changed_.notify_all();
}

void LocalGroup::sleep_until(int member, std::chrono::steady_clock::time_point time) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, time, [&] { return failure_ != nullptr || cancelled_[static_cast<std::size_t>(member)]; });
}

void LocalGroup::open(Slot& slot, std::int64_t sequence) {
  slot.sequence = sequence;
  slot.phase = slot.arrived = slot.active = 0;
  slot.executed = false;
  std::fill(slot.reached.begin(), slot.reached.end(), 0);
  std::fill(slot.operations.begin(), slot.operations.end(), nullptr);
}

void LocalGroup::advance(Slot& slot, bool readers_follow) {
  slot.arrived = 0;
  ++slot.phase;
  slot.active = readers_follow ? static_cast<int>(members_.size()) : 0;
}

void LocalGroup::throw_reason(int member) const {
  if (cancelled_[static_cast<std::size_t>(member)]) throw MemberCancelled();
  if (failure_ != nullptr) throw Error("rank {} failed: {}", failure_->rank, failure_->what);
  throw Error("rank {} has left the group: it destroyed its communicator", left_);
}

std::string LocalGroup::missing(const Slot& slot, int phase) const {
  std::vector<int> ranks;
  for (std::size_t m = 0; m < members_.size(); ++m)
    if (slot.reached[m] <= phase) ranks.push_back(members_[m]);
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

MatchedOperation::MatchedOperation(LocalGroup& group, int member, std::int64_t sequence, const Operation& operation,
                                   double time)
    : group_(group),
      member_(member),
      slot_(group.slots_[static_cast<std::size_t>(sequence % 2)]),
      deadline_(base::RunningClock::now() + group.timeout_) {
  std::lock_guard lock(group_.mutex_);
  if (group_.ended(member)) group_.throw_reason(member);
  if (slot_.sequence != sequence) group_.open(slot_, sequence);
  slot_.operations[static_cast<std::size_t>(member)] = &operation;
  slot_.times[static_cast<std::size_t>(member)] = time;
}

MatchedOperation::~MatchedOperation() {
  if (!active_) return;
  std::unique_lock lock(group_.mutex_);
  group_.broken_ = true;
  if (--slot_.active == 0) group_.changed_.notify_all();
  // Peers may still read the buffers of this member, so the member waits until they reach the end of the phase.
  group_.changed_.wait(lock, [&] { return slot_.active == 0; });
}

bool MatchedOperation::start(const std::function<bool()>& together) {
  std::unique_lock lock(group_.mutex_);
  ++slot_.reached[static_cast<std::size_t>(member_)];
  if (++slot_.arrived == static_cast<int>(group_.members_.size()) && !group_.broken_) {
    slot_.executed = together();
    group_.advance(slot_, !slot_.executed);
    active_ = !slot_.executed;
    lock.unlock();
    group_.changed_.notify_all();
    return !active_;
  }
  wait_for_end(lock, 0);
  active_ = !slot_.executed;
  return !active_;
}

void MatchedOperation::wait_for_all(bool readers_follow) {
  std::unique_lock lock(group_.mutex_);
  const int phase = slot_.phase;
  if (std::exchange(active_, false) && --slot_.active == 0 && group_.disturbed()) group_.changed_.notify_all();
  ++slot_.reached[static_cast<std::size_t>(member_)];
  if (++slot_.arrived == static_cast<int>(group_.members_.size()) && !group_.broken_) {
    group_.advance(slot_, readers_follow);
    active_ = readers_follow;
    lock.unlock();
    group_.changed_.notify_all();
    return;
  }
  wait_for_end(lock, phase);
  active_ = readers_follow;
}

// Waits until all members have reached the end of `phase`. Throws as described in the header.
void MatchedOperation::wait_for_end(std::unique_lock<std::mutex>& lock, int phase) {
  const auto over = [&] { return slot_.phase != phase || (slot_.active == 0 && group_.ended(member_)); };
  if (!base::wait_until(group_.changed_, lock, deadline_, over)) {
    group_.broken_ = true;
    group_.changed_.wait(lock, [&] { return slot_.active == 0; });
    throw Error("time limit of {} ms passed waiting for {}", group_.timeout_.count(), group_.missing(slot_, phase));
  }
  if (slot_.phase == phase) {
    group_.broken_ = true;
    group_.throw_reason(member_);
  }
}

}  // namespace tessera::comm
