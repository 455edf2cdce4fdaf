// The sum of a step's losses over all ranks that read different samples. The sum has the same bits on every rank and
// for every gtp degree.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "tessera/base/buffer.h"
#include "tessera/shard/parallel_groups.h"

namespace tessera::train {

// Memory of one sum, which the next sum reuses. The object must outlive parallel's lanes while a sum is in flight.
class LossSum {
 public:
  // Enqueues the sum; it is complete at the returned fence. losses: for each microbatch of this rank an fp64 tensor on
  // compute's device, written by compute. All these tensors have the same number of elements, and each element is
  // summed. Collective over ranks with different samples. Each replica has the same number of blocks. Throws Error if a
  // replica's ranks do not divide its number of blocks.
  base::Fence start(const std::vector<at::Tensor>& losses, shard::ParallelGroups& parallel);
  // Returns one element of the last completed sum. Adds in fp64, replicas in order and the blocks of each replica in
  // order.
  double result(std::size_t element = 0) const;
  std::size_t elements() const { return elements_; }

 private:
  base::Buffer own_;         // on the device
  std::vector<double> all_;  // by replica, rank in the replica, microbatch, and element
  std::size_t elements_ = 1;
  std::vector<std::size_t> readers_;  // by replica: ranks that read samples
  std::size_t blocks_ = 0;            // per replica
};

}  // namespace tessera::train
