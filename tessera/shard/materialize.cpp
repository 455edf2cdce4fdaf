#include "tessera/shard/materialize.h"

#include "tessera/layout/redistribute.h"

namespace tessera::shard {
namespace {

// The storage layout seen by the gtp group of one tp slot, and what each of its ranks wants: that slot's whole home
// part.
layout::Layout storage_of_slot(const ShardedParameter& parameter, int tp_rank, int tp_size, int gtp_size) {
  std::vector<int> ranks;
  for (int gtp = 0; gtp < gtp_size; ++gtp) ranks.push_back(tp_rank + tp_size * gtp);
  return layout::select(parameter.storage, ranks);
}

}  // namespace

Materializer::Materializer(const ShardedParameter& parameter, const Parallel& parallel) {
  const int tp = parallel.tp_rank(), tp_size = parallel.tp_size();
  const int gtp = parallel.gtp_rank(), gtp_size = parallel.gtp_size();
  const auto element = static_cast<std::int64_t>(quant::size_of(parameter.types.model));
  weight_bytes_ = base::align_up(static_cast<std::size_t>(parameter.local_compute.size * element));
  if (parameter.spec.sharded && gtp_size > 1) {
    const layout::Layout home = layout::repeat(layout::select(parameter.home, {tp}), gtp_size);
    over_gtp_.emplace(storage_of_slot(parameter, tp, tp_size, gtp_size), home, gtp);
    received_bytes_ += over_gtp_->elements_received() * element;
  }
  if (parameter.home != parameter.spec.compute) {
    over_tp_.emplace(parameter.home, parameter.spec.compute, tp);
    received_bytes_ += over_tp_->elements_received() * element;
  }
  if (over_gtp_ && over_tp_)
    scratch_bytes_ = base::align_up(static_cast<std::size_t>(parameter.local_home.size * element));
}

base::Fence Materializer::start(const ShardedParameter& parameter, Groups groups, std::byte* buffer,
                                const base::Fence& free, const Recording& recording) const {
  const quant::DType type = parameter.types.model;
  const auto element = static_cast<std::int64_t>(quant::size_of(type));
  comm::Communicator& first = over_gtp_ ? groups.gtp : groups.tp;
  first.lane().wait(free);
  first.lane().wait(parameter.published);
  base::Fence done;
  const void* home = parameter.weight.data();
  if (over_gtp_) {
    std::byte* target = over_tp_ ? buffer + weight_bytes_ : buffer;
    const base::LaneMark mark = recording.mark(schedule::Activity::gather, over_gtp_->elements_received() * element);
    mark.begin(groups.gtp.lane());
    done = mark.end(groups.gtp.lane(), over_gtp_->run(groups.gtp, home, target, type));
    home = target;
  }
  if (over_tp_) {
    groups.tp.lane().wait(done);
    const base::LaneMark mark = recording.mark(schedule::Activity::gather_tp, over_tp_->elements_received() * element);
    mark.begin(groups.tp.lane());
    done = mark.end(groups.tp.lane(), over_tp_->run(groups.tp, home, buffer, type));
  }
  return done;
}

}  // namespace tessera::shard
