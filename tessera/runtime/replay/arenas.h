// The arenas of one runtime: the memory that its schedules assign.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "tessera/base/memory/buffer.h"
#include "tessera/runtime/transfers/transfer_arena.h"
#include "tessera/schedule/schedule.h"
#include "tessera/shard/parallel_groups.h"

namespace tessera::runtime {

// One schedule runs at a time, so all schedules share these arenas. All domains share them too: fences of compute order
// their transfers (Residency::free, Reduction::scratch_waits). The addresses change only when a schedule needs a larger
// arena.
struct Arenas {
  base::Buffer gather, reduce, scratch;
  std::shared_ptr<TransferArena> transfers;       // not null; memory of the program's transfers in pieces
  std::string transfer_problem;                   // why some tp peers cannot write to `transfers`, as grow() returns it
  std::int64_t gather_peak = 0, reduce_peak = 0;  // largest number of bytes that a schedule has used

  // If the program's transfers travel in pieces, weights and gradients are pushed in copies of at most this number of
  // bytes. The copies of a GPU follow each other, so a piece waits for at most one such copy (about 43 us between
  // H100s).
  static constexpr std::size_t kLongestCopy = std::size_t{16} << 20;

  // Makes the arenas large enough for the schedule. Collective over the groups of gathers, of reductions and of the
  // program. No transfer may be in flight. If `pushes` is true, the ranks of a group can then write into each other's
  // arenas. Returns the reason why some peers cannot write (Communicator::share), or an empty text.
  std::string grow(const schedule::Schedule& schedule, shard::ParallelGroups& parallel, bool pushes);
  // Ends the access of peers to the arenas. Collective. Called before the memory is freed.
  void unshare(shard::ParallelGroups& parallel) const;
  std::int64_t bytes() const {
    return static_cast<std::int64_t>(gather.size() + reduce.size() + scratch.size() + transfers->memory().size());
  }
};

}  // namespace tessera::runtime
