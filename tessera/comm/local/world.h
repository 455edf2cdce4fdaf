// Ranks as threads of one process. CPU only; what tests, CI and a laptop use. Mismatches are always checked. Delays,
// failures and a slow network can be injected, and time can be computed instead of spent.
#pragma once
#include <functional>
#include <memory>
#include <optional>

#include "tessera/comm/local/link.h"
#include "tessera/comm/world.h"

namespace tessera::comm {

struct LocalOptions : WorldOptions {
  // Called on the communicator's lane before each operation with (world rank, group name, operation, sequence number in
  // the group). It may sleep (a delay), throw (a failing rank) or never return within the time limit (a stopped rank).
  std::function<void(int rank, const std::string& group, const std::string& op, std::int64_t sequence)> inject;
  // Between the ranks of every group. A collective ends for all members link->seconds(bytes) after the last of them has
  // come to it, `bytes` being the most that one receives (received_bytes in operation.h). A group of one has no link.
  // Errors (InputError): a latency below 0, a speed that is not above 0.
  std::optional<Link> link;
  // Nothing sleeps for the link; lanes and hosts have virtual time (base/lane.h, World::clock). A collective begins at
  // the latest of its members' lanes. The same program gives the same times in every run, as long as it does not ask
  // whether a fence is done. Time limits stay real.
  bool virtual_clock = false;
};

// Runs body(world) on `ranks` threads and waits for all. When ranks fail, the others' pending operations fail at once
// with an error that names the failed rank; the first error by time is rethrown here.
void run_local(int ranks, const LocalOptions& options, const std::function<void(World&)>& body);

}  // namespace tessera::comm
