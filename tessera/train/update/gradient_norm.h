// The norm of the whole model's gradient. The norm has the same bits on every rank and for every sharding over gtp and
// ZeRO-1. The all-reduce of the norm also sums the counters that can suppress an update. All ranks therefore make the
// same decision about the update. The norm is the commit point of a step (docs/schedule.md).
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/memory/buffer.h"
#include "tessera/ops/optimizer/clip.h"
#include "tessera/quant/exact_sum.h"
#include "tessera/runtime/runtime.h"
#include "tessera/train/update/finite_check.h"

namespace tessera::train {

// The reason why a step was suppressed.
struct Stop {
  std::string counter;     // name of the counter
  std::int64_t count = 0;  // value of the counter, summed over all ranks
  bool operator==(const Stop&) const = default;
};

// The squares of main_grad are summed in fp64 for each row of each rank's part. The sums of all rows, of all ranks and
// parameters, are then added exactly, and the total is rounded once (docs/numerics.md). Frozen parameters do not count.
// A replicated parameter counts once. compute() is collective. It uses one all-reduce of integers over the world, whose
// size is the same few hundred bytes for every model and mesh. On a GPU the runtime's sums write to memory of this
// object. Therefore neither the runtime nor this object may be destroyed while a step is running. Used by one thread.
class GradientNorm {
 public:
  // If `check` finds a value that is not finite, the norm becomes NaN. `check` must outlive this object. Null: no
  // check.
  explicit GradientNorm(runtime::Runtime& runtime, const FiniteCheck* check = nullptr);
  ~GradientNorm();
  GradientNorm(const GradientNorm&) = delete;
  GradientNorm& operator=(const GradientNorm&) = delete;
  // Adds a stop counter. A step is suppressed if the counter is above 0 on some rank. Returns the address of the
  // counter, an int64 in device memory that is 0 or positive. Work on compute's lane may increase the counter during a
  // training step, on any rank. The counter is reset to 0 after a suppressed step. The memory is valid as long as this
  // object. Every rank adds the same names in the same order. Throws Error for a repeated name or for more than
  // ops::kStopCounters counters.
  std::int64_t* stop_counter(std::string name);
  // Computes the norm and the decision about the update. Call this function after end_step. On a GPU, compute() only
  // enqueues work. The norm may be infinite or NaN. `clip` is the limit of the norm; 0 means no limit.
  void compute(double clip);
  // Returns the first stop counter above 0 in the step of this decision, which is the reason why the step was
  // suppressed. Returns nullopt if the step was not suppressed, or if it was discarded after a suppressed step.
  std::optional<Stop> stop_of(const ops::Clip& clip) const;
  // Enqueues work on compute's lane that clears Clip::suppressed, so later updates apply again. Updates that were
  // enqueued earlier are still suppressed.
  void clear_suppression();
  // Returns the address of compute()'s result in device memory, for work on compute's lane.
  ops::Clip* result() { return clip_.as<ops::Clip>().data(); }

 private:
  // Rows whose squares this rank contributes to the norm.
  struct Part {
    schedule::ParameterId id = schedule::kNoParameter;
    layout::LocalLayout local;
    std::int64_t rows = 0;
  };
  void take_squares_from_sums();
  void write_row_sums();

  runtime::Runtime& runtime_;
  const FiniteCheck* check_;
  std::vector<Part> parts_;
  std::int64_t rows_ = 0;
  std::vector<std::string> stop_counters_;  // names, in the order of Message::stops

  // Buffers on the runtime's device.
  base::Buffer row_sums_;  // one double for each row of the parts
  base::Buffer message_;   // Message
  base::Buffer total_;     // one double
  base::Buffer clip_;      // ops::Clip

  // The integers that the all-reduce sums.
  struct Message {
    quant::ExactSum squares;
    std::int64_t stops[ops::kStopCounters];
  };
  static constexpr std::int64_t kMessageWords = quant::kExactSumWords + ops::kStopCounters;
  static_assert(sizeof(Message) == kMessageWords * sizeof(std::int64_t) && sizeof(Message) <= 1536);
};

}  // namespace tessera::train
