#include "tessera/shard/parallel.h"

#include <chrono>

#include "tessera/base/cuda_lane.h"
#include "tessera/base/error.h"

namespace tessera::shard {

Parallel make_parallel(comm::World& world, int tp, int gtp, int dp, bool with_casts) {
  mesh::Mesh mesh({{"tp", tp}, {"gtp", gtp}, {"dp", dp}});
  if (mesh.world_size() != world.size())
    throw InputError("tp {} x gtp {} x dp {} = {} ranks, but the run has {}", tp, gtp, dp, mesh.world_size(),
                     world.size());
  Parallel parallel{.mesh = std::move(mesh), .rank = world.rank()};
  auto group = [&](const std::string& name, const std::vector<std::string>& axes,
                   comm::Traffic traffic = comm::Traffic::any) {
    return world.make_group(name, parallel.mesh.groups(axes), traffic);
  };
  parallel.clock = world.clock();
  parallel.board = world.make_board();
  parallel.tp = group("tp", {"tp"});
  parallel.gtp_gather = group("gtp-gather", {"gtp"});
  parallel.gtp_reduce = group("gtp-reduce", {"gtp"});
  parallel.gtp_demand = group("gtp-demand", {"gtp"}, comm::Traffic::small);
  parallel.gtp_rows = group("gtp-rows", {"gtp"}, comm::Traffic::small);
  parallel.tp_gather = group("tp-gather", {"tp"});
  parallel.tp_reduce = group("tp-reduce", {"tp"});
  parallel.dp = group("dp", {"dp"});
  parallel.data = group("data", {"gtp", "dp"}, comm::Traffic::small);
  parallel.norm = group("norm", {"tp", "gtp", "dp"}, comm::Traffic::small);
  parallel.world = group("world", {"tp", "gtp", "dp"}, comm::Traffic::small);
  if (with_casts) parallel.casts = group("casts", {"tp", "gtp", "dp"}, comm::Traffic::small);
  parallel.device = parallel.world->kernels().device();
  if (parallel.device.kind == base::DeviceKind::cuda) {
    parallel.compute = base::make_cuda_lane("compute", parallel.device);
    parallel.own_kernels = quant::make_cuda_kernels(parallel.device, parallel.compute->stream());
    // A sum's kernel waits until products leave multiprocessors to it; the next exchange does not wait for that.
    parallel.sums = base::make_cuda_lane("sums", parallel.device, base::LanePriority::high);
    parallel.own_sum_kernels = quant::make_cuda_kernels(parallel.device, parallel.sums->stream());
  } else {
    parallel.compute = base::make_inline_lane(parallel.clock);
  }
  return parallel;
}

std::vector<comm::Communicator*> Parallel::groups() const {
  std::vector<comm::Communicator*> groups{tp.get(),       gtp_gather.get(), gtp_reduce.get(), gtp_demand.get(),
                                          gtp_rows.get(), tp_gather.get(),  tp_reduce.get(),  dp.get(),
                                          data.get(),     norm.get(),       world.get()};
  if (casts) groups.push_back(casts.get());
  return groups;
}

std::vector<base::Lane*> Parallel::lanes() const {
  std::vector<base::Lane*> lanes;
  for (comm::Communicator* group : groups()) lanes.push_back(&group->lane());
  if (sums) lanes.push_back(sums.get());
  return lanes;
}

void Parallel::cancel() const {
  for (comm::Communicator* group : groups()) group->cancel();
}

void Parallel::drain() const {
  for (base::Lane* lane : lanes()) {
    const base::Fence last = lane->record();
    while (!last.wait_for(std::chrono::seconds(1))) continue;  // every operation has a time limit of its own
  }
}

}  // namespace tessera::shard
