// Ranks as processes with one GPU each; NCCL moves the bytes, and our own kernels add them, in rank order.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "tessera/base/device.h"
#include "tessera/comm/world.h"
#include "tessera/rendezvous/store.h"

namespace tessera::comm {

struct NcclOptions : WorldOptions {
  int rank = 0, size = 1;
  base::Device device = base::cuda_device(0);
  // Of the run; the world takes connections of its own, and keys under "nccl/". Worlds made one after the other over
  // one store need a prefix each.
  std::shared_ptr<rendezvous::Store> store;
  // The NCCL to load where the process holds none yet; empty: the one the build names, then the system's.
  std::string nccl_file;
  // Called once, by a thread of its own, when an operation has failed and everything that follows will: for a program
  // that ends then, since work that waits for a dead peer may keep the device, and with it this process's exit, for
  // ever.
  std::function<void(const std::string& error)> on_failure;
};

// False where the library was built without CUDA (make_nccl_world then throws InputError).
bool nccl_available();
// Collective: all ranks make their worlds. Groups of one rank use no NCCL. Every communicator has a stream of high
// priority, and calls return when the work is enqueued; the first exchange with a peer waits for that peer. Operands in
// host memory go by way of pinned memory and the device.
// A thread watches all operations: one that is not over within the time limit after the device has come to it, an error
// of NCCL, or a failure that another rank has told of, ends all communicators, and the fences say why.
// Errors: no NCCL, one of another version than the header's (InputError); no such device.
std::unique_ptr<World> make_nccl_world(const NcclOptions& options);

}  // namespace tessera::comm
