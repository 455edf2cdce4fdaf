// The memory of the schedules of one runtime.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "tessera/base/buffer.h"
#include "tessera/runtime/transfers/transfer_arena.h"
#include "tessera/schedule/schedule.h"
#include "tessera/shard/parallel_groups.h"

namespace tessera::runtime {

// One schedule runs at a time, so all schedules share the same arenas. Addresses stay the same until a schedule needs a
// larger arena.
struct Arenas {
  base::Buffer gather, reduce, scratch;
  std::shared_ptr<TransferArena> transfers;       // not null; of the program's transfers in pieces
  std::string transfer_problem;                   // why some tp peers cannot write to `transfers`, as grow() returns it
  std::int64_t gather_peak = 0, reduce_peak = 0;  // bytes that schedules have used

  // Makes the arenas large enough for the schedule. Collective over the groups of gathers, reductions and the program;
  // nothing may be in flight. With `pushes` the ranks of a group let each other write into their arenas. Returns the
  // reason why some peers cannot write (Communicator::share), or an empty text.
  std::string grow(const schedule::Schedule& schedule, shard::ParallelGroups& parallel, bool pushes);
  // Ends the peers' access. Collective. Called before the memory is freed.
  void unshare(shard::ParallelGroups& parallel) const;
  std::int64_t bytes() const {
    return static_cast<std::int64_t>(gather.size() + reduce.size() + scratch.size() + transfers->memory().size());
  }
};

}  // namespace tessera::runtime
