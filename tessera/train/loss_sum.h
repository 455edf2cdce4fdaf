// Sums the losses of a step over all ranks that read different samples. The sum has the same bits on every rank and for
// every gtp degree.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "tessera/base/memory/buffer.h"
#include "tessera/shard/parallel_groups.h"

namespace tessera::train {

// Owns the memory of one sum, which the next sum reuses. While a sum is in flight, the object must outlive the lanes of
// `parallel`.
class LossSum {
 public:
  // Enqueues the sum, which is complete when the returned fence is done. `losses` contains an fp64 tensor on compute's
  // device for each microbatch of this rank, which compute writes. All tensors have the same number of elements.
  // Element i of the sum is the sum of the elements i. Collective over the ranks with different samples. `by_replica`
  // is StepInput::microbatches_by_replica. Throws Error for: a `by_replica` that does not match the size of `losses`;
  // an empty `by_replica` if the blocks of a replica are not a multiple of its readers.
  base::Fence start(const std::vector<at::Tensor>& losses, shard::ParallelGroups& parallel,
                    const std::vector<int>& by_replica = {});
  // Returns one element of the last completed sum. The sum is computed in fp64, over the replicas in order and over the
  // blocks of each replica in order.
  double result(std::size_t element = 0) const;
  std::size_t elements() const { return elements_; }

 private:
  base::Buffer own_;         // this rank's losses, on the device
  std::vector<double> all_;  // by replica, rank in the replica, microbatch, and element
  std::size_t elements_ = 1;
  // A replica's number of readers, and each reader's number of microbatches.
  struct Blocks {
    std::size_t readers = 1, microbatches = 0;
  };
  std::vector<Blocks> replicas_;
};

}  // namespace tessera::train
