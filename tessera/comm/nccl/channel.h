// One NCCL communicator. Several threads may use a channel, and any thread may abort the channel.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "tessera/base/device.h"
#include "tessera/base/process/running_clock.h"
#include "tessera/comm/nccl/library.h"
#include "tessera/comm/operation.h"
#include "tessera/comm/world.h"

namespace tessera::comm {

using NcclDeadline = base::RunningClock::time_point;

// Calls run under a lock and never block in NCCL (config.blocking = 0). A caller that waits for the result of a call
// polls, so that another thread can abort meanwhile.
class NcclChannel {
 public:
  // Connects to the other members. Throws Error if NCCL fails or the deadline passes.
  NcclChannel(std::shared_ptr<const NcclLibrary> library, base::Device device, const GroupIdentity& group,
              const ncclUniqueId& id, Traffic traffic, NcclDeadline deadline);
  // Does nothing after abort(). Otherwise finishes and frees the communicator. If this takes longer than 10 s, aborts
  // the communicator.
  ~NcclChannel();
  NcclChannel(const NcclChannel&) = delete;
  NcclChannel& operator=(const NcclChannel&) = delete;

  // Calls body(library, communicator) between ncclGroupStart and ncclGroupEnd. Returns when the work of `body` is
  // enqueued. Throws Error if NCCL fails, if the deadline passes, and after an abort.
  using Body = std::function<ncclResult_t(const NcclLibrary&, ncclComm_t)>;
  void call(const char* what, const Body& body, NcclDeadline deadline);

  // Ends this rank's pending work of the communicator on the device. Any thread may call this function.
  void abort();
  // Returns NCCL's error of enqueued work, or an empty string if there is no error.
  std::string async_error();

 private:
  void check(ncclResult_t result, const char* what);
  void await_ready(const char* what, NcclDeadline deadline);

  const std::shared_ptr<const NcclLibrary> library_;
  const base::Device device_;
  const std::string name_;  // NCCL keeps a pointer to this string
  std::mutex mutex_;
  ncclComm_t comm_ = nullptr;  // null after an abort
};

}  // namespace tessera::comm
