// What replicas give each other: the sum of their gradients once a step, and, where each updates only a part of the
// weights (ZeRO-1), the new weights. Both on the dp lane, for this rank's shard; bits are those of a plain all_reduce
// and of replicas that update everything.
#pragma once
#include <cstdint>

#include "tessera/base/fence.h"
#include "tessera/shard/parallel.h"
#include "tessera/shard/parameter.h"
#include "tessera/shard/recording.h"

namespace tessera::shard {

// Enqueues the sum of main_grad over the replicas, in replica order, after `written`. Collective over dp. When the
// fence is done main_grad holds the sum, where the state is split only its state part.
base::Fence sum_over_replicas(ShardedParameter& parameter, Parallel& parallel, const base::Fence& written,
                              const base::LaneMark& mark = {});
// Bytes that this rank receives in it.
std::int64_t replica_sum_bytes(const ShardedParameter& parameter, const Parallel& parallel);

// Enqueues the gathering of the state parts of a weight that splits its state, in place, after `written`. Collective
// over dp. When the fence is done the weight is whole.
base::Fence gather_updates(ShardedParameter& parameter, Parallel& parallel, const base::Fence& written,
                           const base::LaneMark& mark = {});
std::int64_t update_bytes(const ShardedParameter& parameter);  // received, a publish

}  // namespace tessera::shard
