// The exchanges between replicas for a rank's shard. They are redistributions between the shard that each replica
// stores and the part that each replica updates. Once a step, the gradients are summed over the replicas. If each
// replica updates only a part of the weights (ZeRO-1), the replicas also exchange the new weights. The results have the
// same bits as an all-reduce and replicas that update all weights.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tessera/base/lanes/fence.h"
#include "tessera/comm/redistribution.h"
#include "tessera/shard/parallel_groups.h"
#include "tessera/shard/parameter.h"
#include "tessera/shard/ways/recording.h"

namespace tessera::shard {

// The layouts of one exchange over the ranks of Transfer::replicas.
struct ReplicaExchange {
  layout::Layout from, to;
};
// Returns the layouts for the sum of a gradient. from: the stored parts. to: the parts that ranks update, or the stored
// parts if the state is not split.
ReplicaExchange replica_sum(const RankParts& parts, int replicas);
// Returns the layouts for the exchange of new weights. from: the parts that ranks update. to: the stored parts.
ReplicaExchange replica_update(const RankParts& parts, int replicas);

class Replicas;

// A parameter whose gradient is summed over the replicas.
struct ReplicaSum {
  ShardedParameter* parameter = nullptr;
  const Replicas* replicas = nullptr;
};
// Enqueues Replicas::sum of several parameters of one domain. If the replicas are equal, sums that end on one rank each
// travel in one transfer.
base::Fence sum_over_replicas(std::span<const ReplicaSum> members, const ParallelGroups& parallel,
                              const base::Fence& written, const base::LaneMark& mark = {});

// The exchanges for one parameter, built once. The object contains only data, and must live until the work that it has
// enqueued is done.
class Replicas {
 public:
  Replicas(const ShardedParameter& parameter, const ParallelGroups& parallel);

  // Enqueues the sum of main_grad over the replicas, in replica order, in the accumulator type and in place, after
  // `written`; with one replica, returns `written`. Collective over the replicas' group. When the returned fence is
  // done, main_grad contains the sum. If the state is split, only the state part of main_grad contains the sum.
  base::Fence sum(ShardedParameter& parameter, ParallelGroups& parallel, const base::Fence& written,
                  const base::LaneMark& mark = {}) const {
    return sum_over_replicas(std::array{ReplicaSum{&parameter, this}}, parallel, written, mark);
  }

  // Enqueues an in-place gather of the weight's state parts, after `written`. Called if the state is split. Collective
  // over the replicas' group. The weight is complete when the returned fence is done.
  base::Fence gather_updates(ShardedParameter& parameter, ParallelGroups& parallel, const base::Fence& written,
                             const base::LaneMark& mark = {}) const;

 private:
  friend base::Fence sum_over_replicas(std::span<const ReplicaSum>, const ParallelGroups&, const base::Fence&,
                                       const base::LaneMark&);

  std::optional<comm::Redistribution> sum_;    // absent if there is one replica
  std::vector<comm::Redistribution> updates_;  // by plane; empty if the state is not split
};

}  // namespace tessera::shard
