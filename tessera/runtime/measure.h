// What a recorded step took, as costs that every rank agrees on.
#pragma once
#include <vector>

#include "tessera/runtime/agreement.h"
#include "tessera/runtime/fence_pairs.h"
#include "tessera/runtime/parameter_entry.h"
#include "tessera/runtime/statistics.h"
#include "tessera/schedule/simulate.h"

namespace tessera::runtime {

// One rank's watch over a step, or the part of it, that runs on demand. Time in which the host waits for communication
// counts apart. Where compute is a queue, segments are what lies between its own marks: how the host carries out what
// follows from an event is none of them.
class Measure {
 public:
  explicit Measure(const shard::ParallelGroups& parallel) : parallel_(parallel) {}

  void begin_step();
  // The one at this index of the trace has happened. waits: of compute's lane since the step began.
  void event(std::size_t index, const StepStatistics& statistics, const FencePairs& waits);
  // Compute has waited for a collective of the program. collective: the index of its event. behind: that of the last
  // event before the wait. seconds: how long the host waited; waits: how long compute's lane did, where it is a queue.
  void waited(int collective, int behind, double seconds, FencePairs waits);
  // Compute goes on, after what followed from an event or was done between two.
  void passed(const FencePairs& waits);
  void gathered(schedule::ParameterId id, double seconds);
  void reduced(double seconds, std::int64_t bytes) {
    reduce_seconds_ += seconds;
    reduce_bytes_ += static_cast<double>(bytes);
  }

  // Collective over the class: the longest of its ranks. The traces must have been compared. Returns the smallest
  // `room`.
  std::int64_t agree(const schedule::Trace& trace, std::size_t parameters, std::int64_t room, Agreement& agreement,
                     const ParameterEntries& entries);
  // Of a schedule for the trace that was agreed on.
  schedule::Costs costs(const schedule::Trace& trace, const schedule::Schedule& schedule,
                        const std::vector<schedule::ParameterSize>& sizes) const;

 private:
  // Of a queue, before an event.
  struct Stretch {
    std::size_t event = 0;
    base::Fence begin, end;
    FencePairs waits;
  };
  struct CollectiveWait {
    int collective = 0, behind = 0;
    double seconds = 0;
    FencePairs waits;
  };
  void add(std::size_t event, double seconds, double waited);
  void read_stretches();

  const shard::ParallelGroups& parallel_;
  double last_ = 0, waited_ = 0;
  std::vector<double> segments_;  // by event, before it
  std::vector<Stretch> stretches_;
  std::vector<CollectiveWait> collective_waits_;
  base::Fence begin_;            // of the next; default-made before the first
  std::size_t waits_seen_ = 0;   // before it
  std::vector<double> gathers_;  // by parameter
  double reduce_seconds_ = 0, reduce_bytes_ = 0;
  schedule::Costs agreed_;
  double seconds_per_byte_ = 0;  // of reductions
};

}  // namespace tessera::runtime
