// The sum of a step's losses over all ranks that read different samples: the same bits on every rank and for every gtp
// degree.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "tessera/base/buffer.h"
#include "tessera/shard/parallel_groups.h"

namespace tessera::train {

// Memory of one sum at a time, used again by the next. It must outlive parallel's lanes while a sum is under way.
class LossSum {
 public:
  // losses: of this rank's microbatches, work of compute: scalars in fp64 on its device. Collective over ranks with
  // different samples; each replica has as many blocks. Enqueues; done with the fence. Errors: blocks that a replica's
  // ranks do not divide.
  base::Fence start(const std::vector<at::Tensor>& losses, shard::ParallelGroups& parallel);
  // Replicas in order, their blocks in order, in fp64. Of the sum that is done.
  double result() const;

 private:
  base::Buffer own_;                  // on the device
  std::vector<double> all_;           // by replica and rank in it the microbatches
  std::vector<std::size_t> readers_;  // ranks of each replica that read samples
  std::size_t blocks_ = 0;            // of a replica
};

}  // namespace tessera::train
