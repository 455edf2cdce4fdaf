// An update rule computes new masters from gradients, one element at a time. A rule declares the state that it keeps
// for each element. The optimizer's buffers, the tensors of checkpoints, and the memory and bytes of a plan follow from
// this declaration.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "tessera/base/cuda_stream.h"
#include "tessera/ops/optimizer/clip.h"
#include "tessera/ops/optimizer/split_master.h"
#include "tessera/ops/optimizer/state_rounding.h"
#include "tessera/quant/dtype.h"

namespace tessera::ops {

// The largest number of state planes of a rule.
inline constexpr std::size_t kMaxStatePlanes = 4;

// A state plane has one number for each element of a parameter. The numbers start at zero. `name` is the kind of the
// plane in checkpoints (checkpoint/manifest.h).
struct StatePlane {
  std::string_view name;
  quant::DType type = quant::DType::fp32;
};

// The part of a parameter that this rank updates. The buffers are flat and have the same elements.
struct UpdateShard {
  void* master = nullptr;  // in fp32 or fp64; the update overwrites it. If is_split, low halves
  quant::DType master_type = quant::DType::fp32;
  void* weight = nullptr;  // receives the master, rounded to weight_type; may equal `master`; null: not written
  // The type of the run's weights. For bf16 weights, written here or not, each new fp32 master is replaced by
  // representable(master) (split_master.h).
  quant::DType weight_type = quant::DType::fp32;
  // True: fp32 masters in two parts (split_master.h), both of which the update reads and overwrites. `master` has 16
  // bits for each element, and `weight` is in bf16 memory of its own. Such a shard has no amax.
  bool is_split = false;
  const void* gradient = nullptr;  // of any floating type
  quant::DType gradient_type = quant::DType::fp32;
  std::array<void*, kMaxStatePlanes> planes = {};  // in the order of UpdateRule::planes; the update overwrites them
  std::int64_t count = 0;                          // number of elements
  // The index of the shard's group: the update uses the scalars at group * scalar_bytes() of its argument `scalars`.
  int group = 0;
  // *amax is raised to the greatest magnitude of the updated master, rounded to bf16. NaNs are ignored. Requires a
  // master in fp32. Null: the amax is not computed.
  float* amax = nullptr;
  // For a shard of a stack of matrices: the number of elements of a matrix, and the position of the shard's first
  // element in its matrix. Then *amax belongs to this matrix, the amaxes of the next matrices follow, and each amax is
  // raised by the elements of its own matrix. 0: the shard is part of one matrix.
  std::int64_t amax_elements = 0, amax_offset = 0;
  double factor = 1;  // for rules of matrices: multiplies the learning rate of the elements
  // For rules that round their state: the logical positions of the elements, and the key of the parameter's bits.
  LogicalIndices indices;
  base::PhiloxKey rounding_key{};
};
// Returns whether new masters of the shard follow the rule of split_master.h.
inline bool are_representable(const UpdateShard& shard) {
  return are_representable(shard.master_type, shard.weight_type);
}
// Returns the parts of a split master from element `start` on.
SplitMasters split_parts(const UpdateShard& shard, std::int64_t start = 0);
// Returns the bytes of an element of `master`.
std::size_t master_size(const UpdateShard& shard);
// Returns the part with `count` elements from element `offset` on. `planes` are those of the rule. `indices` are those
// of the whole shard.
UpdateShard part_of(const UpdateShard& whole, std::int64_t offset, std::int64_t count,
                    std::span<const StatePlane> planes);
// Throws Error if the master, the gradient or one of the first `planes` planes is null, or if the members do not fit
// each other.
void check_shard(const UpdateShard& shard, std::size_t planes);

// Raises the amaxes of a shard whose `amax` is not null, from its master in host memory. The update of every rule ends
// with this call, or with a kernel of the same results.
void raise_amaxes(const UpdateShard& shard);

// The numbers that a group of parameters shares in an update.
struct GroupRates {
  double lr = 0;                // learning rate
  std::optional<double> decay;  // weight decay; absent: that of the rule
};

class MatrixRule;

// Immutable. Any thread may call the functions. The results of an element do not depend on other elements, on its
// position in memory or on the sharding. The CPU and CUDA give the same bits.
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;

  // Returns the word for the rule in flags and reports, such as "adamw".
  virtual std::string_view name() const = 0;
  // Returns at most kMaxStatePlanes planes. `master` is the type of the masters.
  virtual std::vector<StatePlane> planes(quant::DType master) const = 0;
  // Returns the bytes of a group's scalars, which are the numbers that differ between updates and between groups: a
  // multiple of 8.
  virtual std::size_t scalar_bytes() const = 0;
  // Writes the scalars of a group for the update with this number, from 1. Throws Error for a number below 1.
  virtual void scalars(const GroupRates& rates, std::int64_t number, std::byte* to) const = 0;
  // Updates the shards. `scalars` are those of the rule's groups, one after another. With a stream, all pointers point
  // to memory of its device, and the call enqueues the update. Without a stream, they point to host memory. The
  // gradient is multiplied by clip->factor. If clip->applies is 0, the update changes only amaxes, which are then those
  // of the current masters. Throws the errors of check_shard.
  virtual void update(std::span<const UpdateShard> shards, const std::byte* scalars, const Clip* clip,
                      base::CudaStream stream) const = 0;
  // Returns the rule as a rule of whole matrices (matrix_rule.h); null for a rule of single elements.
  virtual const MatrixRule* matrix_rule() const { return nullptr; }
};

// Returns the scalars of a group from those that a rule wrote (UpdateRule::scalars), one after another.
template <typename Scalars>
Scalars scalars_of(const std::byte* scalars, int group) {
  Scalars of_group;
  std::memcpy(&of_group, scalars + static_cast<std::size_t>(group) * sizeof of_group, sizeof of_group);
  return of_group;
}

// Returns the bytes of all state planes of this number of elements.
std::int64_t state_bytes(const UpdateRule& rule, std::int64_t elements, quant::DType master);

// The scalars of an update whose number the host does not know yet, because it has not read yet whether the updates
// directly before were applied. Choices are the lowest possible number, as an int64, and the scalars of all groups for
// kScalarChoices consecutive numbers from it. The host computes them (UpdateScalars), so every device uses the same
// bits.
inline constexpr int kScalarChoices = 3;
constexpr std::size_t choices_bytes(std::size_t scalar_bytes) {
  return sizeof(std::int64_t) + kScalarChoices * scalar_bytes;
}

namespace cuda {
// If clip->applies is not 0, increments *updates and copies the scalars of this number from `choices` to `scalars`.
// Otherwise *updates and the scalars are unchanged. A number outside the choices traps on the device. `bytes` are
// those of the scalars of one number. All pointers point to device memory.
void choose_scalars(const std::byte* choices, std::size_t bytes, const Clip* clip, std::int64_t* updates,
                    std::byte* scalars, base::CudaStream stream);
}  // namespace cuda

}  // namespace tessera::ops
