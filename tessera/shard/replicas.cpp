#include "tessera/shard/replicas.h"

#include <utility>
#include <vector>

namespace tessera::shard {

base::Fence sum_over_replicas(ShardedParameter& parameter, Parallel& parallel, const base::Fence& written) {
  comm::Communicator& dp = *parallel.dp;
  if (dp.size() == 1) return written;
  const base::DType type = parameter.types.accumulator;
  dp.lane().wait(written);
  if (!parameter.splits_state()) return dp.all_reduce(parameter.main_grad.data(), parameter.shard_elements(), type);
  return dp.reduce_scatter(parameter.main_grad.data(), parameter.state_gradient(), parameter.state_counts, type);
}

std::int64_t replica_sum_bytes(const ShardedParameter& parameter, const Parallel& parallel) {
  const std::int64_t replicas = parallel.dp_size();
  const auto element = static_cast<std::int64_t>(base::size_of(parameter.types.accumulator));
  if (parameter.splits_state()) return (replicas - 1) * parameter.state_elements() * element;
  return 2 * (replicas - 1) * parameter.shard_elements() * element / replicas;
}

base::Fence exchange_updates(std::span<ShardedParameter* const> parameters, Parallel& parallel,
                             const base::Fence& written) {
  comm::Communicator& dp = *parallel.dp;
  std::vector<comm::Send> sends;
  std::vector<comm::Receive> receives;
  for (ShardedParameter* parameter : parameters) {
    const std::size_t element = base::size_of(parameter->types.model);
    const auto own = static_cast<std::size_t>(parameter->state_elements()) * element;
    std::byte* part = parameter->weight.data();
    for (int peer = 0; peer < dp.size(); ++peer) {
      const auto bytes = static_cast<std::size_t>(parameter->state_counts[static_cast<std::size_t>(peer)]) * element;
      if (peer != dp.rank()) {
        sends.push_back({peer, parameter->state_weight(), own});
        receives.push_back({peer, part, bytes});
      }
      part += bytes;
    }
  }
  dp.lane().wait(written);
  return dp.exchange(std::move(sends), std::move(receives));
}

std::int64_t update_bytes(const ShardedParameter& parameter) {
  if (!parameter.splits_state()) return 0;
  return (parameter.shard_elements() - parameter.state_elements()) *
         static_cast<std::int64_t>(base::size_of(parameter.types.model));
}

}  // namespace tessera::shard
