// A point in a lane's queue: everything enqueued before it is done, or failed.
#pragma once
#include <chrono>
#include <exception>
#include <memory>

#include "tessera/base/clock.h"

namespace tessera::base {

namespace detail {
class FenceState;
class HostFence;
}  // namespace detail

// A cheap copyable handle; any thread may use it. A default-made fence is already complete.
class Fence {
 public:
  Fence() = default;
  explicit Fence(std::shared_ptr<detail::FenceState> state) : state_(std::move(state)) {}

  bool done() const;  // complete or failed; never blocks
  // Blocks until done. Rethrows the first error of the work before it in its lane. Work that may not finish (a
  // collective) has its own time limit, so this returns. For the host: where time is virtual, the host's clock is
  // raised to time().
  void synchronize() const;
  // As synchronize, without the host's clock: for work on a lane.
  void wait() const;
  // Blocks until done, `limit` at most, in real time. Whether it is done, failed too; throws nothing, moves no clock.
  bool wait_for(std::chrono::nanoseconds limit) const;
  std::exception_ptr error() const;  // null while not done or when all went well
  // When its lane came to it, in virtual seconds; 0 while not done, and where time is real.
  double time() const;
  // Seconds between two fences of record_timed(), which are done: measured by the device on a GPU. Errors: not done,
  // not timed, lanes of unlike devices.
  double seconds_since(const Fence& earlier) const;

  const detail::FenceState* state() const { return state_.get(); }  // null when default-made

 private:
  std::shared_ptr<detail::FenceState> state_;
};

// The side that completes a fence from the host.
class Promise {
 public:
  Promise();
  // `host`: the clock that synchronize() raises; null where time is real.
  explicit Promise(std::shared_ptr<VirtualClock> host);
  Fence fence() const;
  void complete(std::exception_ptr error = nullptr, double time = 0);

 private:
  std::shared_ptr<detail::HostFence> state_;
};

}  // namespace tessera::base
