#include "tessera/shard/reduction.h"

#include <utility>

#include "tessera/base/error.h"
#include "tessera/comm/kernels.h"

namespace tessera::shard {

Reducer::Reducer(const ShardedParameter& parameter, const Parallel& parallel) {
  const int tp = parallel.tp_rank(), tp_size = parallel.tp_size();
  const int gtp = parallel.gtp_rank(), gtp_size = parallel.gtp_size();
  const std::size_t accumulator = base::size_of(parameter.types.accumulator);
  staging_bytes_ = static_cast<std::size_t>(parameter.local_compute.size) * accumulator;
  home_elements_ = static_cast<std::size_t>(parameter.local_home.size);

  const bool overlaps = parameter.home != parameter.spec.compute;
  if (overlaps || (parameter.spec.partial_gradient && tp_size > 1)) {
    layout::Layout parts = parameter.spec.compute;
    parts.state = layout::State::partial;
    over_tp_.emplace(parts, parameter.home, tp);
    received_bytes_ += over_tp_->plan().elements_received(tp) * static_cast<std::int64_t>(accumulator);
  }
  for (int rank = 0; rank < gtp_size; ++rank) {
    const auto place = static_cast<std::size_t>(tp + tp_size * rank);
    send_counts_.push_back(parameter.storage.ranks[place].size);
    receive_counts_.push_back(parameter.shard_elements());
    if (rank != gtp)
      received_bytes_ += parameter.shard_elements() * static_cast<std::int64_t>(base::size_of(parameter.types.wire));
  }
}

Reducer::Exchange Reducer::start(const ShardedParameter& parameter, const Parallel& parallel, base::Buffer staging,
                                 BufferPool& pool) const {
  const ParameterTypes& types = parameter.types;
  const std::size_t wire = base::size_of(types.wire);
  Exchange exchange{.sent = std::move(staging)};
  if (over_tp_) {
    base::Buffer summed = pool.take(home_elements_ * base::size_of(types.accumulator));
    over_tp_->run(*parallel.tp, exchange.sent.data(), summed.data(), types.accumulator).synchronize();
    pool.give_back(std::exchange(exchange.sent, std::move(summed)));
  }
  if (types.wire != types.accumulator) {
    base::Buffer rounded = pool.take(home_elements_ * wire);
    comm::cast(exchange.sent.data(), types.accumulator, rounded.data(), types.wire,
               static_cast<std::int64_t>(home_elements_));
    pool.give_back(std::exchange(exchange.sent, std::move(rounded)));
  }
  const auto shard = static_cast<std::size_t>(parameter.shard_elements());
  exchange.received = pool.take(send_counts_.size() * shard * wire);
  exchange.done = parameter.spec.sharded
                      ? parallel.gtp_reduce->all_to_all(exchange.sent.data(), send_counts_, exchange.received.data(),
                                                        receive_counts_, types.wire)
                      : parallel.gtp_reduce->all_gather(exchange.sent.data(), exchange.received.data(), receive_counts_,
                                                        types.wire);
  return exchange;
}

void Reducer::finish(ShardedParameter& parameter, Exchange exchange, BufferPool& pool) const {
  exchange.done.synchronize();
  const auto shard = static_cast<std::size_t>(parameter.shard_elements());
  std::vector<const void*> parts;
  for (std::size_t rank = 0; rank < send_counts_.size(); ++rank)
    parts.push_back(exchange.received.data() + rank * shard * base::size_of(parameter.types.wire));
  comm::ordered_sum(parameter.main_grad.data(), parameter.types.accumulator, parameter.main_grad_written, parts,
                    parameter.types.wire, parameter.shard_elements());
  parameter.main_grad_written = true;
  pool.give_back(std::move(exchange.sent));
  pool.give_back(std::move(exchange.received));
}

}  // namespace tessera::shard
