// The norm of the whole model's gradient: one number, the same bits on every rank and for every gtp degree.
#pragma once
#include <cstdint>
#include <vector>

#include "tessera/shard/runtime.h"

namespace tessera::train {

// Squares of main_grad are summed in fp64 by row of each rank's part; rows that tp cuts add their parts in tp-rank
// order, row sums combine in row order, parameters in name order (docs/numerics.md). Frozen parameters do not count; a
// replicated one counts once. Planned once, collective over tp x gtp at every call.
class GradientNorm {
 public:
  explicit GradientNorm(shard::Runtime& runtime);
  // After end_step. May be infinite or NaN.
  double compute();

 private:
  shard::Runtime& runtime_;
  std::vector<shard::ParameterId> order_;
  std::vector<std::int64_t> counts_;  // row sums of each rank of tp x gtp
};

}  // namespace tessera::train
