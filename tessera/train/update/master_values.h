// Access to the masters of a parameter outside of updates: on the device for initial values and benchmarks, and on the
// host for checkpoints. Masters that are stored follow the rule of ops/optimizer/split_master.h if their weights are in
// bf16.
#pragma once
#include <cstddef>
#include <optional>

#include "tessera/base/memory/buffer.h"
#include "tessera/quant/dtype.h"
#include "tessera/shard/parallel_groups.h"
#include "tessera/shard/parameter.h"
#include "tessera/train/host_view.h"

namespace tessera::train {

// The masters of the part of a parameter that this rank updates. Kernels of compute's lane read and write them; on a
// GPU, their memory is on the device. The parameter and `parallel` outlive the object. The work that uses data() must
// be done when the object is destroyed.
class MasterValues {
 public:
  // Split masters are joined in memory of this object, on the device.
  MasterValues(shard::ShardedParameter& parameter, shard::ParallelGroups& parallel);

  // state_elements() numbers of the type type(), in the state layout.
  std::byte* data() { return parameter_.has_split_master ? joined_.data() : parameter_.state_master(); }
  quant::DType type() const { return parameter_.types.accumulator; }
  // Call this function after a change of the numbers. Splits masters that are split, which writes the weight. Other
  // weights are not written (WeightCast). Returns when the masters are stored.
  void store();

 private:
  shard::ShardedParameter& parameter_;
  shard::ParallelGroups& parallel_;
  base::Buffer joined_;
};

// The same masters in host memory. Takes no memory of a device, because a checkpoint is written when a step has taken
// the memory that it needs. The parameter must have a separate master.
class HostMasters {
 public:
  HostMasters(shard::ShardedParameter& parameter, shard::ParallelGroups& parallel);

  // As in MasterValues.
  void* data() { return weights_ ? joined_.data() : masters_.data(); }
  void store();

 private:
  shard::ParameterTypes types_;
  std::int64_t count_;
  HostView masters_;                 // or the low halves of split masters
  std::optional<HostView> weights_;  // of split masters
  base::Buffer joined_;
};

}  // namespace tessera::train
