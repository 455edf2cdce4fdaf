// The sum of a step's losses over all ranks that read different samples. It has the same bits on every rank and for
// every gtp degree.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "tessera/base/buffer.h"
#include "tessera/shard/parallel_groups.h"

namespace tessera::train {

// Memory of one sum, which the next sum reuses. It must outlive parallel's lanes while a sum is in flight.
class LossSum {
 public:
  // Enqueues the sum; it is complete at the returned fence. losses: one fp64 scalar on compute's device per microbatch
  // of this rank, written by compute. Collective over ranks with different samples. Each replica has the same number of
  // blocks. Throws Error if a replica's ranks do not divide its number of blocks.
  base::Fence start(const std::vector<at::Tensor>& losses, shard::ParallelGroups& parallel);
  // Returns the last completed sum. Adds in fp64, replicas in order and the blocks of each replica in order.
  double result() const;

 private:
  base::Buffer own_;                  // on the device
  std::vector<double> all_;           // by replica, rank in the replica, and microbatch
  std::vector<std::size_t> readers_;  // by replica: ranks that read samples
  std::size_t blocks_ = 0;            // per replica
};

}  // namespace tessera::train
