// All ranks of a run, as seen by one rank: this rank's number, and the groups that it can make.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/base/clock.h"
#include "tessera/comm/communicator.h"
#include "tessera/rendezvous/boards/board.h"

namespace tessera::comm {

struct WorldOptions {
  std::chrono::milliseconds timeout{60000};  // limit for the time of each operation on this rank
  bool check_mismatch = false;  // mpi, nccl: whether ranks compare operation, count and type before each collective
};

// `small`: short or latency-tolerant messages, for which the backend reserves few resources. `any`: all other traffic.
enum class Traffic { any, small };

class World {
 public:
  virtual ~World() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string_view backend() const = 0;  // "local", "mpi", "nccl"

  // Makes groups of ranks. Collective over the world: every rank makes the same calls with the same arguments in the
  // same order. Returns the communicator of this rank's group, or null if no group contains this rank. `groups` are
  // disjoint lists of world ranks. Each call makes a communicator with its own lane, so two calls over the same ranks
  // do not block each other.
  virtual std::unique_ptr<Communicator> make_group(const std::string& name, const std::vector<std::vector<int>>& groups,
                                                   Traffic traffic = Traffic::any) = 0;
  // Makes a board (rendezvous/boards/board.h). Collective over the world. The board must not outlive the world.
  virtual std::unique_ptr<rendezvous::Board> make_board() = 0;

  // Returns this rank's host clock if time is virtual (comm/local/world.h), otherwise null. Simulated computation
  // advances the clock by the time of the computation.
  virtual std::shared_ptr<base::VirtualClock> clock() const { return nullptr; }
};

}  // namespace tessera::comm
