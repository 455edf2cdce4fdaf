// Access to the masters of a parameter outside of updates: for initial values, checkpoints and benchmarks.
#pragma once
#include <cstddef>

#include "tessera/quant/dtype.h"
#include "tessera/shard/parallel_groups.h"
#include "tessera/shard/parameter.h"

namespace tessera::train {

// The masters of the part of a parameter that this rank updates. Kernels of compute's lane read and write them; on a
// GPU, their memory is on the device. Both arguments outlive the object.
class MasterValues {
 public:
  MasterValues(shard::ShardedParameter& parameter, shard::ParallelGroups& parallel)
      : parameter_(parameter), parallel_(parallel) {}

  // state_elements() numbers of the type type(), in the state layout.
  std::byte* data() { return parameter_.state_master(); }
  quant::DType type() const { return parameter_.types.accumulator; }
  // Call this function after a change of the numbers. Masters of bf16 weights then follow the rule of
  // ops/optimizer/split_master.h. The weight is not written (WeightCast). Enqueues work on compute's lane.
  void store();

 private:
  shard::ShardedParameter& parameter_;
  shard::ParallelGroups& parallel_;
};

}  // namespace tessera::train
