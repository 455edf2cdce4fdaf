// The interface that a backend implements. The communicator, which calls the backend, checks arguments, owns the lane
// and keeps the order of operations.
#pragma once
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/comm/communicator.h"
#include "tessera/comm/operation.h"

namespace tessera::comm {

// One member of one group. The communicator calls perform() on its lane, one operation at a time.
class Backend {
 public:
  virtual ~Backend() = default;
  // Executes the operation. Returns when peers no longer access this member's buffers, or throws Error on failure.
  // Takes no longer than the time limit in either case. `clock` is the lane's clock; it is null if time is real.
  virtual void perform(const Operation& operation, base::VirtualClock* clock) = 0;
  // Makes pending and later operations of this member fail at once. Called when an exception destroys the communicator.
  // Any thread may call this function.
  virtual void cancel() = 0;
  virtual const quant::Kernels& kernels() const { return quant::host_kernels(); }
  // Implements Communicator::launch. Called on the lane.
  virtual void launch(const std::function<void(base::CudaStream)>&, std::chrono::milliseconds expected);
  // Implements Communicator::share. Called when the lane's work is complete.
  virtual std::string share(std::span<std::byte>) { return {}; }
  // Implements Communicator::limit_copies. Called when the lane's work is complete.
  virtual void limit_copies(std::size_t /*bytes*/) {}
};

// Makes a communicator with its own thread lane. The lane uses the virtual time of `host`, if `host` is not null. The
// communicator's destructor finishes the lane's queue.
std::unique_ptr<Communicator> make_communicator(GroupIdentity identity, std::unique_ptr<Backend> backend,
                                                std::shared_ptr<base::VirtualClock> host = nullptr);
// Makes a communicator on `lane`. The communicator owns the lane and destroys it before the backend.
std::unique_ptr<Communicator> make_communicator(GroupIdentity identity, std::unique_ptr<Backend> backend,
                                                std::unique_ptr<base::Lane> lane);

// Returns the index of the group that contains `rank`, or -1 if no group contains `rank`. Throws Error for: an empty
// group; a rank outside the world; a rank that appears twice.
int find_group(const std::string& name, const std::vector<std::vector<int>>& groups, int world_size, int rank);

}  // namespace tessera::comm
