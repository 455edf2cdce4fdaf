// The store of a run of processes: libtorch's TCPStore. In the target tessera_rendezvous_store, which needs libtorch.
#pragma once
#include <memory>

#include "tessera/rendezvous/launcher.h"
#include "tessera/rendezvous/limited_store.h"

namespace tessera::rendezvous {

// Rank 0 hosts it, unless the launcher does; it must be the last to let go of it. A host that does not answer in time
// is an Error, and the connection is lost (limited_store.h). set() has no answer: one to a host that is gone may seem
// to work. Errors: not reached in time.
std::shared_ptr<Store> make_tcp_store(const Launch& launch, const StoreLimits& limits);

// For a program, before its first store: libtorch does not print its own many lines about connections, since errors say
// the same. The variable TORCH_CPP_LOG_LEVEL decides where it is set.
void quieten_store();

}  // namespace tessera::rendezvous
