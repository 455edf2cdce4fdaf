// What a recorded step took, as costs that every rank agrees on.
#pragma once
#include <vector>

#include "tessera/shard/agreement.h"
#include "tessera/shard/entry.h"
#include "tessera/shard/fence_pairs.h"
#include "tessera/shard/simulate.h"
#include "tessera/shard/statistics.h"

namespace tessera::shard {

// One rank's watch over a step that runs on demand. Time in which the host waits for communication counts apart. A
// queue's segments are what lies between its own marks: what the host takes to come to an event is none of them.
class Measure {
 public:
  explicit Measure(const Parallel& parallel) : parallel_(parallel) {}

  void begin_step();
  // One has happened. waits: of compute's lane since the step began.
  void event(const StepStatistics& statistics, const FencePairs& waits);
  // Compute goes on, after what followed from an event or was done between two.
  void passed();
  void gathered(ParameterId id, double seconds);
  void reduced(double seconds, std::int64_t bytes) {
    reduce_seconds_ += seconds;
    reduce_bytes_ += static_cast<double>(bytes);
  }

  // Collective over the world: the longest of all ranks. The traces must have been compared. Returns the smallest
  // `room`.
  std::int64_t agree(const Trace& trace, std::size_t parameters, std::int64_t room, Agreement& agreement,
                     const Entries& entries);
  // Of a schedule for the trace that was agreed on.
  Costs costs(const Trace& trace, const Schedule& schedule, const std::vector<ParameterSize>& sizes) const;

 private:
  const Parallel& parallel_;
  void read_fences();

  double last_ = 0, waited_ = 0;
  std::vector<double> segments_, waits_;  // by event, before it
  // Where compute is a queue: between which points of it an event's segment lies, and the waits there.
  std::vector<base::Fence> begins_, ends_;
  std::vector<FencePairs> waits_within_;
  std::size_t waits_seen_ = 0;
  std::vector<double> gathers_;  // by parameter
  double reduce_seconds_ = 0, reduce_bytes_ = 0;
  Costs agreed_;
  double seconds_per_byte_ = 0;  // of reductions
};

}  // namespace tessera::shard
