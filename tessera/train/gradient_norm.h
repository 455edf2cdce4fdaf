// The norm of the whole model's gradient: one number, the same bits on every rank and for every gtp degree.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "tessera/base/buffer.h"
#include "tessera/ops/adamw.h"
#include "tessera/runtime/runtime.h"

namespace tessera::train {

// min(1, clip / (norm + 1e-6)); 1 when clip is 0.
double clip_factor(double norm, double clip);

// Where the parts of each row of the model lie among values: first the row sums that ranks gather, rank by rank, each
// in the order of its pieces, then those that every rank makes itself.
struct RowIndex {
  std::vector<std::int64_t> begins{0};  // of each row's parts in positions; one more, the end
  std::vector<std::int64_t> positions;  // of values, in tp-rank order within a row
  std::vector<std::int64_t> ends;       // behind the last row of each parameter

  std::int64_t rows() const { return static_cast<std::int64_t>(begins.size()) - 1; }
  // The sum of all: parts of a row, rows of a parameter, parameters, each one by one.
  double sum(std::span<const double> values) const;
};

// Squares of main_grad are summed in fp64 by row of each rank's part; rows that tp cuts add their parts in tp-rank
// order, row sums combine in row order, parameters in name order (docs/numerics.md): one by one on a CPU, by a fixed
// tree over the rows on a GPU. Frozen parameters do not count; a replicated one counts once. Planned once, collective
// at every call. On a GPU the runtime's sums leave squares here: neither of the two may go while steps run.
class GradientNorm {
 public:
  explicit GradientNorm(runtime::Runtime& runtime);
  ~GradientNorm();
  GradientNorm(const GradientNorm&) = delete;
  GradientNorm& operator=(const GradientNorm&) = delete;
  // After end_step. On a GPU it is only enqueued. The norm may be infinite or NaN. clip: limit of the norm, 0 for none.
  void compute(double clip);
  // What compute makes, in the device's memory, for work of compute's lane.
  ops::Clip* result() { return clip_.as<ops::Clip>().data(); }

 private:
  std::int64_t rows_gathered() const;
  RowIndex index_rows() const;
  void append_row_sums(shard::ShardedParameter& parameter, double* sums);
  void write_row_sums();
  void let_sums_give_squares();

  runtime::Runtime& runtime_;
  std::vector<schedule::ParameterId> order_;
  comm::Communicator* group_;         // tp x gtp, or with split states tp x gtp x dp: all ranks that hold other rows
  std::vector<std::int64_t> counts_;  // row sums of each of its ranks
  std::int64_t replicated_ = 0;       // row sums that every rank makes itself
  RowIndex index_;

  // On the runtime's device.
  base::Buffer own_, values_;  // doubles: this rank's row sums; what index_ speaks of
  base::Buffer clip_;          // ops::Clip
  // On a GPU: index_ there, and sums of many rows (ops/row_sums.h).
  base::Buffer begins_, positions_, sums_;
};

}  // namespace tessera::train
