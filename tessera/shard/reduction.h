// The way of a gradient from its staging (compute layout, staging_type) to main_grad (storage layout).
//
// For each microbatch and parameter, as docs/numerics.md says: parts on several compute ranks are added in rank order
// in the accumulator type; the result is rounded once to the wire type; it travels to the ranks that store it; an owner
// adds the ranks' parts in the order of reduction_tree.h to main_grad, which a step's first sum overwrites. Of a
// table that exchanges rows (rows.h), the rows read travel, to every rank, and give the same sums.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tessera/base/fence.h"
#include "tessera/comm/redistribution.h"
#include "tessera/schedule/way.h"
#include "tessera/shard/gradient_additions.h"
#include "tessera/shard/parallel_groups.h"
#include "tessera/shard/parameter.h"
#include "tessera/shard/recording.h"
#include "tessera/shard/reduction_tree.h"
#include "tessera/shard/rows/rows.h"

namespace tessera::shard {

class Reducer;

// One parameter's part of a reduction: where its gradient is, and bytes for its exchange.
struct Reducing {
  ShardedParameter* parameter = nullptr;
  const Reducer* reducer = nullptr;
  std::byte* staging = nullptr;
  std::byte* scratch = nullptr;
};

// Made ready once a parameter; lives until its reductions are done.
class Reducer {
 public:
  // cuts: those of the parameter. way: WayBytes' of a reduction on this rank.
  Reducer(const ShardedParameter& parameter, const ParallelGroups& parallel, const Cuts& cuts, schedule::Way way);

  // The gradient at the beginning of its buffer, behind it its sum over compute ranks where there is one, or else what
  // it is rounded to where that is another type.
  std::size_t staging_bytes() const { return gradient_bytes_ + summed_bytes_ + staged_rounded_bytes_; }
  // What the exchange needs besides, until its sum is taken: the rounded sum over compute ranks, what the others send,
  // the node's sums.
  std::size_t scratch_bytes() const { return rounded_bytes_ + (additions_ ? additions_->scratch_bytes() : 0); }
  quant::DType staging_type() const { return staging_type_; }
  // Null unless a trained table exchanges rows.
  const RowReducer* rows() const { return rows_ ? &*rows_ : nullptr; }

 private:
  friend base::Fence reduce(std::span<Reducing> members, ParallelGroups& parallel, bool is_last,
                            const Recording& recording, std::span<std::byte> poisoned);
  // What the last lane adds to main_grad: wire as wire_of, squares of rows or null.
  struct Sum {
    Reducing member;
    const std::byte* wire = nullptr;
    bool accumulate = false;
    double* squares = nullptr;
  };
  // Brings to each rank what its sums need.
  static void exchange(const std::vector<Sum>& sums, comm::Communicator& group);
  base::Fence sum_over_compute(const ShardedParameter& parameter, comm::Communicator& group, std::byte* staging,
                               const base::Fence& written, const base::LaneMark& mark) const;
  // Where the gradient is that travels, of the wire type once round() has run.
  std::byte* wire_of(const Reducing& member) const;
  // The memory of its additions.
  std::byte* exchanged(const Reducing& member) const;
  void round(const quant::Kernels& kernels, const Reducing& member) const;
  bool rounds_on_compute() const { return staged_rounded_bytes_ > 0; }
  // Enqueues it where it is due. Done: compute has written and rounded all.
  static base::Fence round_on_compute(std::span<const Reducing> members, ParallelGroups& parallel);
  // squares: of rows, null for none.
  void add_to_main_grad(const quant::Kernels& kernels, const Reducing& member, const std::byte* wire, bool accumulate,
                        double* squares) const;

  ParameterTypes types_;
  quant::DType staging_type_;
  std::optional<comm::Redistribution> over_compute_;
  std::optional<RowReducer> rows_;
  ReductionTree tree_;
  std::optional<GradientAdditions> additions_;  // none of a table that exchanges rows
  schedule::Way way_;
  std::int64_t home_elements_ = 0;                                                // that are rounded
  std::size_t gradient_bytes_ = 0, summed_bytes_ = 0, staged_rounded_bytes_ = 0;  // aligned, as the next
  std::size_t rounded_bytes_ = 0;  // at the beginning of the scratch, before what the additions need
};

// Enqueues the reduction of several gradients as one exchange, after what compute has been given (it writes every
// staging). All are of one domain. Collective over its groups Via::reduce_compute and Via::reduce. main_grad holds the
// sum when the fence is done; `poisoned` is overwritten with NaN just before. is_last: nothing is added to these parts
// of main_grad any more in this step, so row_squares can be written. One thread: marks main_grad, and row_squares, as
// written.
base::Fence reduce(std::span<Reducing> members, ParallelGroups& parallel, bool is_last, const Recording& recording = {},
                   std::span<std::byte> poisoned = {});

}  // namespace tessera::shard
