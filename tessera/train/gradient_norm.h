// The norm of the whole model's gradient: one number, the same bits on every rank and for every way in which gtp and
// ZeRO-1 cut the model. Its message also carries the counters of what must stop an update, so that all ranks take the
// same decision about it: the commit point of a step (docs/schedule.md).
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/buffer.h"
#include "tessera/ops/optimizer/adamw.h"
#include "tessera/quant/exact_sum.h"
#include "tessera/runtime/runtime.h"
#include "tessera/train/finite_check.h"

namespace tessera::train {

// Why a step was suppressed.
struct Stop {
  std::string counter;     // its name
  std::int64_t count = 0;  // over all ranks
  bool operator==(const Stop&) const = default;
};

// Squares of main_grad are summed in fp64 by row of each rank's part; these sums, those of all ranks and parameters,
// are added exactly, and the total is rounded once (docs/numerics.md). Frozen parameters do not count; a replicated one
// counts once. Planned once. Collective at every call: one all-reduce of integers over the world, of the same few
// hundred bytes for every model and mesh. On a GPU the runtime's sums leave squares here, so the runtime and this
// object both stay while steps run. One thread.
class GradientNorm {
 public:
  // check: makes the norm NaN where it finds a value that is not finite; it outlives the norm. Null: none.
  explicit GradientNorm(runtime::Runtime& runtime, const FiniteCheck* check = nullptr);
  ~GradientNorm();
  GradientNorm(const GradientNorm&) = delete;
  GradientNorm& operator=(const GradientNorm&) = delete;
  // Another counter of what must stop an update. Returns its int64 in the device's memory, at least 0, which work of
  // compute's lane may raise during a training step, on any ranks. A step in which it is above 0 on some rank is
  // suppressed; then it is 0 again. The memory stays where it is as long as this object. The same names in the same
  // order on every rank. Errors: a name twice; more than ops::kStopCounters.
  std::int64_t* stop_counter(std::string name);
  // After end_step. On a GPU it is only enqueued. The norm may be infinite or NaN. clip: limit of the norm, 0 for none.
  void compute(double clip);
  // Why the step of this decision was suppressed: the first of its counters above 0; none: it was not, or it stood
  // behind a suppressed one.
  std::optional<Stop> stop_of(const ops::Clip& clip) const;
  // Updates apply again. Enqueued on compute's lane: those that are enqueued before it see the flag as it was.
  void clear_suppression();
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
  const FiniteCheck* check_;
  std::vector<Part> parts_;
  std::int64_t rows_ = 0;
  std::vector<std::string> stop_counters_;  // names, in the order of Message::stops

  // On the runtime's device.
  base::Buffer row_sums_;  // a double a row of the parts
  base::Buffer message_;   // Message
  base::Buffer total_;     // a double
  base::Buffer clip_;      // ops::Clip

  // What the ranks add up, word by word.
  struct Message {
    quant::ExactSum squares;
    std::int64_t stops[ops::kStopCounters];
  };
  static constexpr std::int64_t kMessageWords = quant::kExactSumWords + ops::kStopCounters;
  static_assert(sizeof(Message) == kMessageWords * sizeof(std::int64_t) && sizeof(Message) <= 1536);
};

}  // namespace tessera::train
