// The store of a run of processes: libtorch's TCPStore. This file is in the target tessera_rendezvous_store, which
// needs libtorch.
#pragma once
#include <memory>
#include <stop_token>
#include <thread>

#include "tessera/rendezvous/launcher.h"
#include "tessera/rendezvous/limited_store.h"
#include "tessera/rendezvous/socket.h"

namespace tessera::rendezvous {

// Connects to the store. Rank 0 hosts the store unless the launcher hosts it. The store listens on loopback if all
// ranks are known to run on one host, otherwise on all interfaces. If rank 0 hosts the store, it must be the last rank
// that closes its connection. The store has no authentication: each value that another process may have set must be
// checked like input. Values have at most kLongestValue bytes. If the host does not answer a call in time, the call
// throws Error, and the connection can no longer be used (limited_store.h). set() does not wait for an answer, so it
// may return normally after the host has ended. make_tcp_store throws InputError if the port is in use, and Error if it
// cannot connect in time.
std::shared_ptr<Store> make_tcp_store(const Launch& launch, const StoreLimits& limits);

// The port on which rank 0 hosts the store. On other ranks, and if the launcher hosts the store, there is no port.
class StorePort {
 public:
  // Listens on the port, and sets launch.socket for make_tcp_store. Throws InputError if the port is in use.
  explicit StorePort(Launch& launch);

  // Called by every rank when it has opened its last connection to the store. Does not wait. When all ranks have called
  // the function, a thread of rank 0 ends the acceptance of connections, so that other programs can no longer use the
  // store. The number of the port stays taken while this object exists, so that another run on the port is refused.
  // `store` is the run's store (join_run).
  void close_when_all_connected(const std::shared_ptr<Store>& store);

 private:
  void await_ranks_and_close(Store& store, const std::stop_token& stop);

  Launch launch_;
  Socket kept_;  // bound to the port after its closure; accepts no connection
  std::jthread thread_;
};

// Suppresses libtorch's log lines about connections, because errors contain the same information. Does nothing if the
// environment variable TORCH_CPP_LOG_LEVEL is set. Call this function before the program makes its first store.
void disable_store_log();

}  // namespace tessera::rendezvous
