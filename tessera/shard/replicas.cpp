#include "tessera/shard/replicas.h"

namespace tessera::shard {

base::Fence sum_over_replicas(ShardedParameter& parameter, Parallel& parallel, const base::Fence& written,
                              const base::LaneMark& mark) {
  comm::Communicator& dp = *parallel.dp;
  if (dp.size() == 1) return written;
  const quant::DType type = parameter.types.accumulator;
  dp.lane().wait(written);
  mark.begin(dp.lane());
  std::byte* gradient = parameter.main_grad.data();
  return mark.end(dp.lane(), parameter.splits_state()
                                 ? dp.reduce_scatter(gradient, parameter.state_gradient(), parameter.state_counts, type)
                                 : dp.all_reduce(gradient, parameter.shard_elements(), type));
}

std::int64_t replica_sum_bytes(const ShardedParameter& parameter, const Parallel& parallel) {
  const std::int64_t replicas = parallel.dp_size();
  const auto element = static_cast<std::int64_t>(quant::size_of(parameter.types.accumulator));
  if (parameter.splits_state()) return (replicas - 1) * parameter.state_elements() * element;
  return 2 * (replicas - 1) * parameter.shard_elements() * element / replicas;
}

base::Fence gather_updates(ShardedParameter& parameter, Parallel& parallel, const base::Fence& written,
                           const base::LaneMark& mark) {
  comm::Communicator& dp = *parallel.dp;
  dp.lane().wait(written);
  mark.begin(dp.lane());
  return mark.end(dp.lane(), dp.all_gather(parameter.state_weight(), parameter.weight.data(), parameter.state_counts,
                                           parameter.types.model));
}

std::int64_t update_bytes(const ShardedParameter& parameter) {
  if (!parameter.splits_state()) return 0;
  return (parameter.shard_elements() - parameter.state_elements()) *
         static_cast<std::int64_t>(quant::size_of(parameter.types.model));
}

}  // namespace tessera::shard
