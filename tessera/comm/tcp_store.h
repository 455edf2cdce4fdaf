// The store of a run of processes: libtorch's TCPStore. In the target tessera_comm_store, which needs libtorch.
#pragma once
#include <chrono>
#include <memory>

#include "tessera/comm/launcher.h"
#include "tessera/comm/store.h"

namespace tessera::comm {

// How long a call waits for the host at most.
inline constexpr std::chrono::milliseconds kStoreAnswers{10'000};

// Rank 0 hosts it, unless the launcher does; it must be the last to let go of it. A host that does not answer a call
// within `limit` or kStoreAnswers, whichever is less, is an Error, and the connection is lost (limited_store.h). set()
// has no answer: one to a host that is gone may seem to work. Errors: not reached within `limit`.
std::shared_ptr<Store> make_tcp_store(const Launch& launch, std::chrono::milliseconds limit);

// For a program, before its first store: libtorch does not print its own many lines about connections, since errors say
// the same. The variable TORCH_CPP_LOG_LEVEL decides where it is set.
void quieten_store();

}  // namespace tessera::comm
