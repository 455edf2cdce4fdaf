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
  const auto element = static_cast<std::int64_t>(base::size_of(parameter.types.model));
  bytes_ = static_cast<std::size_t>(parameter.local_compute.size * element);
  home_bytes_ = static_cast<std::size_t>(parameter.local_home.size * element);
  if (parameter.spec.sharded && gtp_size > 1) {
    const layout::Layout home = layout::repeat(layout::select(parameter.home, {tp}), gtp_size);
    over_gtp_.emplace(storage_of_slot(parameter, tp, tp_size, gtp_size), home, gtp);
    received_bytes_ += over_gtp_->plan().elements_received(gtp) * element;
  }
  if (parameter.home != parameter.spec.compute) {
    over_tp_.emplace(parameter.home, parameter.spec.compute, tp);
    received_bytes_ += over_tp_->plan().elements_received(tp) * element;
  }
}

Materializer::Gather Materializer::start(const ShardedParameter& parameter, const Parallel& parallel,
                                         BufferPool& pool) const {
  Gather gather;
  const base::DType type = parameter.types.model;
  gather.weight = pool.take(bytes_);
  const void* home = parameter.weight.data();
  if (over_gtp_) {
    if (over_tp_) gather.scratch = pool.take(home_bytes_);
    std::byte* target = over_tp_ ? gather.scratch.data() : gather.weight.data();
    gather.done = over_gtp_->run(*parallel.gtp_gather, parameter.weight.data(), target, type);
    home = target;
  }
  if (over_tp_) {
    parallel.tp->lane().wait(gather.done);
    gather.done = over_tp_->run(*parallel.tp, home, gather.weight.data(), type);
  }
  return gather;
}

}  // namespace tessera::shard
