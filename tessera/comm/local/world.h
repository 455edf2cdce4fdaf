// Ranks as threads of one process, on the CPU only. Used by tests, CI and runs on a laptop. Always checks that the
// ranks' calls match. Can inject delays, failures and a slow network. Can use virtual time (base/clock.h).
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "tessera/comm/local/link.h"
#include "tessera/comm/world.h"

namespace tessera::comm {

struct LocalOptions : WorldOptions {
  // Called on the communicator's lane before each operation with (world rank, group name, operation, sequence number in
  // the group). The function may sleep to simulate a delay, or throw to simulate a failing rank. To simulate a stopped
  // rank, the function does not return within the time limit.
  std::function<void(int rank, const std::string& group, const std::string& op, std::int64_t sequence)> inject;
  // The link between the ranks of every group. A collective ends for all members link->seconds(bytes) seconds after the
  // last member has joined. `bytes` is the most that one member receives (received_bytes in operation.h). A group of
  // one rank has no link. Throws InputError for a latency below 0 and for a speed that is not above 0.
  std::optional<Link> link;
  // If true, the link does not sleep; lanes and hosts have virtual time (base/lanes/lane.h, World::clock). A collective
  // begins at the latest time of its members' lanes. A program has the same times in every run, unless the program
  // tests whether a fence is done. Time limits remain in real time.
  bool virtual_clock = false;
  // If the members of a group together receive at most this number of bytes, the last member that joins executes the
  // operation for all members. Does not change results. With a link, every member executes its own part.
  std::int64_t small_bytes = 65536;
};

// Runs body(world) on `ranks` threads and waits for all of them. If a rank fails, the pending operations of the other
// ranks fail at once with an error that names the failed rank. Rethrows the error that occurred first.
void run_local(int ranks, const LocalOptions& options, const std::function<void(World&)>& body);

}  // namespace tessera::comm
