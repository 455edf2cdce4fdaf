// A point in a lane's queue: everything enqueued before it is done, or failed.
#pragma once
#include <exception>
#include <memory>

namespace tessera::base {

namespace detail {
class FenceState;
}

// A cheap copyable handle; any thread may use it. A default-made fence is already complete.
class Fence {
 public:
  Fence() = default;
  explicit Fence(std::shared_ptr<detail::FenceState> state) : state_(std::move(state)) {}

  bool done() const;  // complete or failed; never blocks
  // Blocks until done. Rethrows the first error of the work before it in its lane. Work that may not finish (a
  // collective) has its own time limit, so this returns.
  void synchronize() const;
  std::exception_ptr error() const;  // null while not done or when all went well

 private:
  std::shared_ptr<detail::FenceState> state_;
};

// The side that completes a fence.
class Promise {
 public:
  Promise();
  Fence fence() const { return Fence(state_); }
  void complete(std::exception_ptr error = nullptr);

 private:
  std::shared_ptr<detail::FenceState> state_;
};

}  // namespace tessera::base
