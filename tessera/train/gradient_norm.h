// The norm of the whole model's gradient: one number, the same bits on every rank and for every gtp degree.
#pragma once
#include <cstdint>
#include <vector>

#include "tessera/base/buffer.h"
#include "tessera/ops/adamw.h"
#include "tessera/shard/runtime.h"

namespace tessera::train {

// min(1, clip / (norm + 1e-6)); 1 when clip is 0.
double clip_factor(double norm, double clip);

// Squares of main_grad are summed in fp64 by row of each rank's part; rows that tp cuts add their parts in tp-rank
// order, row sums combine in row order, parameters in name order (docs/numerics.md): one by one on a CPU, by a fixed
// tree over the rows on a GPU. Frozen parameters do not count; a replicated one counts once. Planned once, collective
// at every call.
class GradientNorm {
 public:
  explicit GradientNorm(shard::Runtime& runtime);
  // After end_step. On a GPU it is only enqueued. The norm may be infinite or NaN. clip: limit of the norm, 0 for none.
  void compute(double clip);
  // What compute makes, in the device's memory, for work of compute's lane.
  const ops::Clip* result() const { return clip_.as<ops::Clip>().data(); }

 private:
  std::int64_t rows_gathered() const;
  void append_row_sums(shard::ShardedParameter& parameter, double* sums);
  double combined(const std::vector<double>& all, const std::vector<double>& replicated) const;
  void index_rows();
  void let_sums_give_squares();
  void compute_on_device(double clip);

  shard::Runtime& runtime_;
  std::vector<shard::ParameterId> order_;
  comm::Communicator* group_;         // tp x gtp, or with split states tp x gtp x dp: all ranks that hold other rows
  std::vector<std::int64_t> counts_;  // row sums of each of its ranks
  std::int64_t replicated_ = 0;       // row sums that every rank makes itself

  base::Buffer clip_;  // ops::Clip
  // On a GPU. values_: own row sums; those of all ranks, behind them the replicated; row r of the model is the sum of
  // some of these (ops/row_sums.h).
  base::Buffer own_, values_, begins_, positions_, sums_;
  std::int64_t rows_ = 0;
};

}  // namespace tessera::train
