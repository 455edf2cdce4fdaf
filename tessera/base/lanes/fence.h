// A fence is a point in a lane's queue. A fence is done when all work that was enqueued before it is done or has
// failed.
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

// A handle that is cheap to copy. Any thread may use the object. A default-constructed fence is already done.
class Fence {
 public:
  Fence() = default;
  explicit Fence(std::shared_ptr<detail::FenceState> state) : state_(std::move(state)) {}

  bool done() const;  // whether the work is complete or has failed; never blocks
  // Blocks until the fence is done. Rethrows the first error of earlier work in its lane. Work that may never finish,
  // such as a collective, has its own time limit, so this function returns. Called by the host. If time is virtual,
  // raises the host's clock to time().
  void synchronize() const;
  // Same as synchronize(), but does not change the host's clock. For work on a lane.
  void wait() const;
  // Blocks until the fence is done, but at most for `limit` in real time. Returns whether the fence is done. A fence
  // whose work failed is also done. Does not throw and does not change a clock.
  bool wait_for(std::chrono::nanoseconds limit) const;
  // Like wait_for, without a limit. Every operation has a time limit, so the call returns. A destructor calls this
  // function before it frees memory that the work uses.
  void wait_until_done() const;
  std::exception_ptr error() const;  // null while the fence is not done, and if all work succeeded
  // Returns the virtual time, in seconds, at which the lane reached the fence. Returns 0 while the fence is not done,
  // and if time is real.
  double time() const;
  // Returns the seconds from `earlier` to this fence. Both must be fences of record_timed(). For fences of a GPU, the
  // GPU measures the time. Throws Error if a fence is not done or not timed, or if the lanes have different kinds of
  // devices.
  double seconds_since(const Fence& earlier) const;

  const detail::FenceState* state() const { return state_.get(); }  // null if default-constructed

 private:
  std::shared_ptr<detail::FenceState> state_;
};

// Owns a fence that the host completes.
class Promise {
 public:
  Promise();
  // `host` is the clock that synchronize() raises, or null if time is real.
  explicit Promise(std::shared_ptr<VirtualClock> host);
  Fence fence() const;
  void complete(std::exception_ptr error = nullptr, double time = 0);

 private:
  std::shared_ptr<detail::HostFence> state_;
};

}  // namespace tessera::base
