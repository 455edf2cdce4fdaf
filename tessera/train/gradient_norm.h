// The norm of the whole model's gradient: one number, the same bits on every rank and for every way in which gtp and
// ZeRO-1 cut the model.
#pragma once
#include <vector>

#include "tessera/base/buffer.h"
#include "tessera/ops/adamw.h"
#include "tessera/quant/exact_sum.h"
#include "tessera/runtime/runtime.h"

namespace tessera::train {

// min(1, clip / (norm + 1e-6)); 1 when clip is 0.
double clip_factor(double norm, double clip);

// Squares of main_grad are summed in fp64 by row of each rank's part; these sums, those of all ranks and parameters,
// are added exactly, and the total is rounded once (docs/numerics.md). Frozen parameters do not count; a replicated one
// counts once. Planned once. Collective at every call: one all-reduce of integers over the world, of the same few
// hundred bytes for every model and mesh. On a GPU the runtime's sums leave squares here: neither of the two may go
// while steps run.
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
  // Rows whose squares this rank contributes.
  struct Part {
    schedule::ParameterId id = schedule::kNoParameter;
    layout::LocalLayout local;
    std::int64_t rows = 0;
  };
  void let_sums_give_squares();
  void write_row_sums();

  runtime::Runtime& runtime_;
  std::vector<Part> parts_;
  std::int64_t rows_ = 0;

  // On the runtime's device.
  base::Buffer row_sums_;  // a double a row of the parts
  base::Buffer message_;   // Message
  base::Buffer total_;     // a double
  base::Buffer clip_;      // ops::Clip

  // What the ranks add up. With room for counters of what may stop an update, it stays below 1.5 KB.
  using Message = quant::ExactSum;
  static_assert(sizeof(Message) <= 1024);
};

}  // namespace tessera::train
