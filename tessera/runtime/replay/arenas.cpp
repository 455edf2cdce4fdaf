#include "tessera/runtime/replay/arenas.h"

#include <utility>

namespace tessera::runtime {

void Arenas::unshare(shard::ParallelGroups& parallel) const {
  for (const mesh::Transfer transfer : {mesh::Transfer::gather, mesh::Transfer::reduce})
    for (comm::Communicator* group : parallel.made(transfer)) group->share({});
  if (transfers->was_used()) parallel.program().share({});
}

std::string Arenas::grow(const schedule::Schedule& schedule, shard::ParallelGroups& parallel, bool pushes) {
  if (pushes) unshare(parallel);
  auto grown = [&parallel](base::Buffer& buffer, std::int64_t bytes) {
    if (static_cast<std::int64_t>(buffer.size()) >= bytes) return;
    buffer = base::Buffer();  // frees the old buffer before the new buffer is allocated
    buffer = base::Buffer(static_cast<std::size_t>(bytes), parallel.device);
  };
  grown(gather, schedule.gather_arena);
  grown(reduce, schedule.reduce_arena);
  grown(scratch, schedule.scratch);
  transfers->grow();
  transfer_problem = "not requested";
  if (!pushes) return "not requested";
  std::string first_problem;
  const auto share = [&](mesh::Transfer transfer, const base::Buffer& memory) {
    for (comm::Communicator* group : parallel.made(transfer)) {
      if (transfers->was_used()) group->limit_copies(kLongestCopy);
      std::string problem = group->share({const_cast<std::byte*>(memory.data()), memory.size()});
      if (first_problem.empty()) first_problem = std::move(problem);
    }
  };
  share(mesh::Transfer::gather, gather);
  share(mesh::Transfer::reduce, scratch);
  base::Buffer& received = transfers->memory();
  if (transfers->was_used()) transfer_problem = parallel.program().share({received.data(), received.size()});
  return first_problem;
}

}  // namespace tessera::runtime
