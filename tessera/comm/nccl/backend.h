// The collectives of ranks with one GPU each. NCCL transfers the data, and Tessera's kernels compute the sums.
#pragma once
#include <memory>
#include <string>

#include "tessera/comm/backend.h"
#include "tessera/comm/nccl/channel.h"
#include "tessera/comm/nccl/watchdog.h"
#include "tessera/comm/world.h"

namespace tessera::comm {

struct NcclMember {
  GroupIdentity group;
  std::string key;  // the group's name in the store
  base::Device device;
  base::CudaStream stream = nullptr;
  std::shared_ptr<base::LaneFaults> faults;  // faults of the stream's lane
  std::shared_ptr<NcclChannel> channel;      // null in a group of one rank
  std::shared_ptr<NcclWatchdog> watchdog;
  std::shared_ptr<rendezvous::Store> store;
};

std::unique_ptr<Backend> make_nccl_backend(const NcclMember& member, const WorldOptions& options);

}  // namespace tessera::comm
