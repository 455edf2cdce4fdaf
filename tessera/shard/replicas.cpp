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
  const ParameterTypes& types = parameter.types;
  if (parameter.splits_state()) return types.accumulator_bytes((replicas - 1) * parameter.state_elements());
  return types.accumulator_bytes(2 * (replicas - 1) * parameter.shard_elements()) / replicas;
}

base::Fence gather_updates(ShardedParameter& parameter, Parallel& parallel, const base::Fence& written,
                           const base::LaneMark& mark) {
  comm::Communicator& dp = *parallel.dp;
  dp.lane().wait(written);
  mark.begin(dp.lane());
  base::Fence gathered;
  for (Plane& plane : parameter.planes)
    gathered = dp.all_gather(plane.state_data(), plane.data.data(), plane.state_counts, plane.spec.type);
  return mark.end(dp.lane(), gathered);
}

std::int64_t update_bytes(const ShardedParameter& parameter) {
  if (!parameter.splits_state()) return 0;
  std::int64_t bytes = 0;
  for (const Plane& plane : parameter.planes) bytes += plane.bytes(plane.local_storage.size - plane.local_state.size);
  return bytes;
}

}  // namespace tessera::shard
