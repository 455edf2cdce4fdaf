// Reduces a gradient: moves it from its staging (compute layout, staging_type) to main_grad (storage layout) and adds
// it.
//
// The reduction of one microbatch's gradient has four steps (docs/numerics.md). First, if several compute ranks hold
// terms of the gradient, the terms are added in rank order in the accumulator type. Second, the result is rounded once
// to the wire type. Third, the rounded gradient is sent to its owners: the ranks that store parts of the weight.
// Fourth, each owner adds the ranks' gradients to main_grad in the order of reduction_tree.h. The first sum of a step
// overwrites main_grad. For a table that exchanges rows (rows.h), only the rows that were read are sent, and every rank
// receives them. The sums have the same bits.
//
// If layers write the gradient directly to main_grad (ShardedParameter::written_by_layers), there is no reduction.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tessera/base/lanes/fence.h"
#include "tessera/comm/redistribution.h"
#include "tessera/schedule/way.h"
#include "tessera/shard/parallel_groups.h"
#include "tessera/shard/parameter.h"
#include "tessera/shard/rows/rows.h"
#include "tessera/shard/ways/gradient_additions.h"
#include "tessera/shard/ways/recording.h"
#include "tessera/shard/ways/reduction_tree.h"

namespace tessera::shard {

class Reducer;

// One parameter of a reduction: its gradient, and memory for its exchange.
struct Reducing {
  ShardedParameter* parameter = nullptr;
  const Reducer* reducer = nullptr;
  std::byte* staging = nullptr;
  std::byte* scratch = nullptr;
};

// The data for reductions of one parameter. One object is built for each parameter, and must live until its reductions
// are done.
class Reducer {
 public:
  // `cuts` is the sharding of the parameter. `way` is this rank's way of a reduction (Ways::reduce).
  Reducer(const ShardedParameter& parameter, const ParallelGroups& parallel, const Cuts& cuts, schedule::Way way);

  // Returns the size of the staging. The gradient is at the beginning of the staging. If the parameter needs a sum over
  // compute ranks, the sum follows the gradient. Otherwise, if the wire type differs from the staging type, the rounded
  // gradient follows.
  std::size_t staging_bytes() const { return gradient_bytes_ + summed_bytes_ + staged_rounded_bytes_; }
  // Returns the size of the scratch that an exchange uses until its sum is done. The scratch contains the rounded sum
  // over compute ranks, the received gradients, and the sums of the node.
  std::size_t scratch_bytes() const { return rounded_bytes_ + (additions_ ? additions_->scratch_bytes() : 0); }
  quant::DType staging_type() const { return staging_type_; }
  // Returns the reducer of a trained table that exchanges rows, otherwise null.
  const RowReducer* rows() const { return rows_ ? &*rows_ : nullptr; }

 private:
  friend base::Fence reduce(std::span<Reducing> members, ParallelGroups& parallel, bool is_last,
                            const Recording& recording, std::span<std::byte> poisoned);
  // One addition to main_grad, which the last lane of the reduction executes. `wire` is the result of wire_of.
  // `squares` receives the sum of squares of each row; null: not written.
  struct Sum {
    Reducing member;
    const std::byte* wire = nullptr;
    bool accumulate = false;
    double* squares = nullptr;
  };
  // Exchanges the gradients that the sums need between the ranks of the group.
  static void exchange(const std::vector<Sum>& sums, comm::Communicator& group);
  // Adds the terms of the compute ranks, for the members that have such terms, in one transfer. Returns a fence that is
  // done when the gradients of all members are complete.
  static base::Fence sum_over_compute(std::span<const Reducing> members, const ParallelGroups& parallel,
                                      const base::Fence& written, const base::LaneMark& mark);
  // Returns the address of the gradient that is sent. The gradient has the wire type after round() has run.
  std::byte* wire_of(const Reducing& member) const;
  // Returns the address of the scratch of the additions.
  std::byte* exchanged(const Reducing& member) const;
  void round(const quant::Kernels& kernels, const Reducing& member) const;
  bool rounds_on_compute() const { return staged_rounded_bytes_ > 0; }
  // Enqueues the rounding of gradients on compute, for the members that need rounding. Returns a fence that is done
  // when compute has written and rounded all gradients.
  static base::Fence round_on_compute(std::span<const Reducing> members, ParallelGroups& parallel);
  // `squares` receives the sum of squares of each row; null: not written.
  void add_to_main_grad(const quant::Kernels& kernels, const Reducing& member, const std::byte* wire, bool accumulate,
                        double* squares) const;

  ParameterTypes types_;
  quant::DType staging_type_;
  std::optional<comm::Redistribution> over_compute_;
  std::optional<RowReducer> rows_;
  ReductionTree tree_;
  std::optional<GradientAdditions> additions_;  // empty for a table that exchanges rows
  schedule::Way way_;
  std::int64_t home_elements_ = 0;                                                // number of elements to round
  std::size_t gradient_bytes_ = 0, summed_bytes_ = 0, staged_rounded_bytes_ = 0;  // aligned, like rounded_bytes_
  std::size_t rounded_bytes_ = 0;  // bytes at the beginning of the scratch, before the memory of the additions
};

// Enqueues the reduction of several gradients as one exchange. All gradients belong to one domain. Collective over the
// domain's groups mesh::Transfer::reduce_compute and Transfer::reduce. The reduction waits for the work that was
// enqueued on compute before this call and that writes every staging. main_grad contains the sum when the returned
// fence is done. Directly before this fence, the memory `poisoned` is overwritten with NaN. If `is_last` is true, this
// step adds no further gradient to these parts of main_grad, and the sum may also write the sums of squares of the
// rows; false is always allowed. Called by one thread, because the call changes the state of the parameters
// (ShardedParameter::next_sum).
base::Fence reduce(std::span<Reducing> members, ParallelGroups& parallel, bool is_last, const Recording& recording = {},
                   std::span<std::byte> poisoned = {});

}  // namespace tessera::shard
