// One NCCL communicator, which several threads may use and one may abort.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "tessera/base/device.h"
#include "tessera/comm/nccl/library.h"
#include "tessera/comm/operation.h"
#include "tessera/comm/world.h"

namespace tessera::comm {

using NcclDeadline = std::chrono::steady_clock::time_point;

// Calls are made under a lock and never block in NCCL (config.blocking = 0); whoever has to wait for one to take effect
// asks again and again, so that another thread can abort meanwhile.
class NcclChannel {
 public:
  // Meets the other members. Errors: NCCL's, the deadline.
  NcclChannel(std::shared_ptr<const NcclLibrary> library, base::Device device, const GroupIdentity& group,
              const ncclUniqueId& id, Traffic traffic, NcclDeadline deadline);
  // After abort() nothing; else finishes and frees, for 10 s at most, and aborts what is not free then.
  ~NcclChannel();
  NcclChannel(const NcclChannel&) = delete;
  NcclChannel& operator=(const NcclChannel&) = delete;

  // Calls body(library, communicator) between ncclGroupStart and ncclGroupEnd and returns when its work is enqueued.
  // Errors: NCCL's, the deadline, aborted.
  using Body = std::function<ncclResult_t(const NcclLibrary&, ncclComm_t)>;
  void call(const char* what, const Body& body, NcclDeadline deadline);

  // Ends what is under way on the device, everywhere on this rank. Any thread.
  void abort();
  // What NCCL says of work that was enqueued; empty where all is well.
  std::string async_error();

 private:
  void check(ncclResult_t result, const char* what);
  void await_ready(const char* what, NcclDeadline deadline);

  const std::shared_ptr<const NcclLibrary> library_;
  const base::Device device_;
  const std::string name_;  // NCCL keeps its address
  std::mutex mutex_;
  ncclComm_t comm_ = nullptr;  // null once aborted
};

}  // namespace tessera::comm
