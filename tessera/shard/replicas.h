// What replicas give each other of a rank's shard, as redistributions between the shard that each stores and the parts
// that each updates: the sum of their gradients once a step, and, where each updates only a part of the weights
// (ZeRO-1), the new weights. Bits are those of a plain all-reduce and of replicas that update everything.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/base/fence.h"
#include "tessera/comm/redistribution.h"
#include "tessera/shard/parallel_groups.h"
#include "tessera/shard/parameter.h"
#include "tessera/shard/recording.h"

namespace tessera::shard {

// Made ready once a parameter. Data only; it must live until what it has enqueued is done.
class Replicas {
 public:
  Replicas(const ShardedParameter& parameter, const ParallelGroups& parallel);

  // Enqueues the sum of main_grad over the replicas, in replica order and in place, after `written`. Collective over
  // the replicas' group. When the fence is done main_grad holds the sum, where the state is split only its state part.
  base::Fence sum(ShardedParameter& parameter, ParallelGroups& parallel, const base::Fence& written,
                  const base::LaneMark& mark = {}) const;

  // Enqueues the gathering of the state parts of a weight that splits its state, in place, after `written`. Collective
  // as above. When the fence is done the weight is whole.
  base::Fence gather_updates(ShardedParameter& parameter, ParallelGroups& parallel, const base::Fence& written,
                             const base::LaneMark& mark = {}) const;

 private:
  std::optional<comm::Redistribution> sum_;    // none without other replicas
  std::vector<comm::Redistribution> updates_;  // by plane; none where the state is not split
};

}  // namespace tessera::shard
