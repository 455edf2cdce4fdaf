// The store of a run of processes: libtorch's TCPStore. This file is in the target tessera_rendezvous_store, which
// needs libtorch.
#pragma once
#include <memory>

#include "tessera/rendezvous/launcher.h"
#include "tessera/rendezvous/limited_store.h"

namespace tessera::rendezvous {

// Connects to the store. Rank 0 hosts the store, unless the launcher does, and must then be the last to close it. If
// the host does not answer in time, the call throws Error and the connection is lost (limited_store.h). set() does not
// wait for an answer, so it may return normally after the host has ended. Throws Error if the store is not reached in
// time.
std::shared_ptr<Store> make_tcp_store(const Launch& launch, const StoreLimits& limits);

// Called by a program before it makes its first store. Suppresses libtorch's log lines about connections, because
// errors contain the same information. If the variable TORCH_CPP_LOG_LEVEL is set, the function does nothing.
void disable_store_log();

}  // namespace tessera::rendezvous
