// Ranks as processes with one GPU each. NCCL transfers the data, and Tessera's kernels compute the sums in rank order.
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
  // The run's store. make_nccl_world opens the world's connections to it; later functions open none. Keys begin with
  // "nccl/". If a run makes several worlds over one store, each world needs its own prefix of keys.
  std::shared_ptr<rendezvous::Store> store;
  // The NCCL library to load if the process has not loaded one yet. Empty: the library that the build names, or else
  // the system's library.
  std::string nccl_file;
  // Called once, on a separate thread, when an operation has failed. All later operations fail too, so the program
  // should end here. Work that waits for a dead peer may block the device forever, and the device may then block the
  // exit of this process.
  std::function<void(const std::string& error)> on_failure;
};

// Returns false if the library was built without CUDA. make_nccl_world then throws InputError.
bool nccl_available();
// Collective: every rank makes its world. Groups of one rank do not use NCCL. Every communicator has its own stream of
// high priority. Calls return when their work is enqueued. Only the first exchange with a peer waits for the peer.
// Operands in host memory are copied through pinned memory and the device.
//
// A thread watches all operations. The watchdog ends all communicators in three cases: an operation does not finish
// within the time limit after the device has reached the operation, NCCL reports an error, or another rank reports a
// failure. The fences then store the cause.
//
// Throws InputError if NCCL is missing or has another version than the header, and Error if the device does not exist.
std::unique_ptr<World> make_nccl_world(const NcclOptions& options);

}  // namespace tessera::comm
