// All ranks of a run, as one rank sees them: who it is, and the groups it can make.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/base/clock.h"
#include "tessera/comm/communicator.h"
#include "tessera/rendezvous/board.h"

namespace tessera::comm {

struct WorldOptions {
  std::chrono::milliseconds timeout{60000};  // of every operation: from its start on this rank to its end
  bool check_mismatch = false;               // mpi, nccl: compare operation, count and type first
};

// What a group's operations move: little, or what has time, for which a backend sets aside little; or anything.
enum class Traffic { any, small };

class World {
 public:
  virtual ~World() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string_view backend() const = 0;  // "local", "mpi", "nccl"

  // Collective over the world: every rank calls it with the same arguments in the same order, and gets its own group's
  // communicator, or null if it is in none. `groups` are disjoint lists of world ranks. Each call makes a communicator
  // with a lane of its own, so two calls over the same ranks do not block each other.
  virtual std::unique_ptr<Communicator> make_group(const std::string& name, const std::vector<std::vector<int>>& groups,
                                                   Traffic traffic = Traffic::any) = 0;
  // Collective over the world. Must not outlive the world.
  virtual std::unique_ptr<rendezvous::Board> make_board() = 0;

  // This rank's host clock where time is virtual (comm/local/world.h), else null. Computation that should take time
  // advances it.
  virtual std::shared_ptr<base::VirtualClock> clock() const { return nullptr; }
};

}  // namespace tessera::comm
