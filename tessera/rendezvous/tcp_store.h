// The store of a run of processes: libtorch's TCPStore. This file is in the target tessera_rendezvous_store, which
// needs libtorch.
#pragma once
#include <memory>

#include "tessera/rendezvous/launcher.h"
#include "tessera/rendezvous/limited_store.h"

namespace tessera::rendezvous {

// Connects to the store. Rank 0 hosts the store unless the launcher hosts it. If rank 0 hosts the store, it must be the
// last rank that closes its connection. If the host does not answer a call in time, the call throws Error, and the
// connection can no longer be used (limited_store.h). set() does not wait for an answer, so it may return normally
// after the host has ended. make_tcp_store throws Error if it cannot connect in time.
std::shared_ptr<Store> make_tcp_store(const Launch& launch, const StoreLimits& limits);

// Suppresses libtorch's log lines about connections, because errors contain the same information. Does nothing if the
// environment variable TORCH_CPP_LOG_LEVEL is set. Call this function before the program makes its first store.
void disable_store_log();

}  // namespace tessera::rendezvous
