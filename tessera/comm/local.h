// Ranks as threads of one process. CPU only; what tests, CI and a laptop use. Mismatches are always checked. Delays and
// failures can be injected.
#pragma once
#include <functional>
#include <memory>

#include "tessera/comm/world.h"

namespace tessera::comm {

struct LocalOptions : WorldOptions {
  // Called on the communicator's lane before each operation with (world rank, group name, operation, sequence number in
  // the group). It may sleep (a delay), throw (a failing rank) or never return within the time limit (a stopped rank).
  std::function<void(int rank, const std::string& group, const std::string& op, std::int64_t sequence)> inject;
};

// Runs body(world) on `ranks` threads and waits for all. When ranks fail, the others' pending operations fail at once
// with an error that names the failed rank; the first error by time is rethrown here.
void run_local(int ranks, const LocalOptions& options, const std::function<void(World&)>& body);

}  // namespace tessera::comm
