// The state of a fence. Each kind of lane has its own implementation.
#pragma once
#include <chrono>
#include <exception>
#include <optional>

namespace tessera::base::detail {

// Any thread may use the state. Each function has the meaning of the function of Fence with the same name. In addition,
// raise_host() raises the host's clock to time() if time is virtual.
class FenceState {
 public:
  virtual ~FenceState() = default;
  virtual bool done() const = 0;
  virtual void wait() const = 0;
  virtual bool wait_for(std::chrono::nanoseconds limit) const = 0;
  virtual std::exception_ptr error() const = 0;
  virtual double time() const { return 0; }
  virtual void raise_host() const {}
  // Called when both fences are done. Returns nullopt if a stream's fence is not timed, or if the fences belong to
  // different kinds of lanes.
  virtual std::optional<double> seconds_since(const FenceState& earlier) const = 0;
};

}  // namespace tessera::base::detail
