// What a backend implements, and the communicator in front of it: argument checks, the lane, the order of operations.
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

// One member of one group. perform() is called on the communicator's lane, one operation at a time.
class Backend {
 public:
  virtual ~Backend() = default;
  // Carries the operation out and returns when this member's buffers are free again. `clock` is the lane's, null where
  // time is real. Throws Error on failure; within the time limit in every case.
  virtual void perform(const Operation& operation, base::VirtualClock* clock) = 0;
  // The owner is being unwound by an exception: pending and later operations of this member fail at once. Any thread.
  virtual void cancel() = 0;
  virtual const quant::Kernels& kernels() const { return quant::host_kernels(); }
  // Communicator::launch, on the lane.
  virtual void launch(const std::function<void(base::CudaStream)>&, std::chrono::milliseconds expected);
  // Communicator::share, with the lane's work done.
  virtual std::string share(std::span<std::byte>) { return {}; }
};

// The communicator has a thread lane of its own, under `host`'s time if there is one. Its destructor finishes the
// lane's queue.
std::unique_ptr<Communicator> make_communicator(GroupIdentity identity, std::unique_ptr<Backend> backend,
                                                std::shared_ptr<base::VirtualClock> host = nullptr);
// On this lane, which it then owns and ends before the backend.
std::unique_ptr<Communicator> make_communicator(GroupIdentity identity, std::unique_ptr<Backend> backend,
                                                std::unique_ptr<base::Lane> lane);

// The index of the group that holds `rank`, -1 if none does. Errors: an empty group, a rank out of the world, a rank
// twice.
int find_group(const std::string& name, const std::vector<std::vector<int>>& groups, int world_size, int rank);

}  // namespace tessera::comm
