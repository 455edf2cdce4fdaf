// The norm of the whole model's gradient: one number, the same bits on every rank and for every gtp degree.
#pragma once
#include <cstdint>
#include <vector>

#include "tessera/shard/runtime.h"

namespace tessera::train {

// Squares of main_grad are summed in fp64 by row of each rank's part; rows that tp cuts add their parts in tp-rank
// order, row sums combine in row order, parameters in name order (docs/numerics.md). Frozen parameters do not count; a
// replicated one counts once. Planned once, collective at every call.
class GradientNorm {
 public:
  explicit GradientNorm(shard::Runtime& runtime);
  // After end_step. May be infinite or NaN.
  double compute();

 private:
  shard::Runtime& runtime_;
  std::vector<shard::ParameterId> order_;
  comm::Communicator* group_;         // tp x gtp, or with split states tp x gtp x dp: all ranks that hold other rows
  std::vector<std::int64_t> counts_;  // row sums of each of its ranks
};

}  // namespace tessera::train
