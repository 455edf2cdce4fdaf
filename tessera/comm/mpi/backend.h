// The collectives of MPI processes. A collective consists of rounds of messages, and of sums that Tessera computes
// itself.
#pragma once
#include <memory>

#include "tessera/comm/backend.h"
#include "tessera/comm/mpi/progress_thread.h"
#include "tessera/comm/world.h"

namespace tessera::comm {

std::unique_ptr<Backend> make_mpi_backend(std::shared_ptr<MpiProgress> progress, MpiContext context,
                                          const GroupIdentity& identity, const WorldOptions& options);

}  // namespace tessera::comm
