// Measures a recorded step and turns it into costs that every rank agrees on.
#pragma once
#include <vector>

#include "tessera/runtime/watch/agreement.h"
#include "tessera/runtime/watch/fence_pairs.h"
#include "tessera/runtime/watch/statistics.h"
#include "tessera/schedule/simulate.h"

namespace tessera::runtime {

// Measures the part of a step that runs on demand, on one rank. Waits of the host for communication are counted
// separately. On a GPU, a segment is the time between two marks in compute's stream; host work between two events is
// not part of it.
class Measure {
 public:
  explicit Measure(const shard::ParallelGroups& parallel) : parallel_(parallel) {}

  void begin_step();
  // Called when the event at this index of the trace is recorded. waits: of compute's lane since the step began.
  void event(std::size_t index, const StepStatistics& statistics, const FencePairs& waits);
  // Called when compute has waited for a collective of the program. collective: the index of its event. behind: the
  // index of the last event before the wait. seconds: the time of the host's wait. waits: the waits of compute's lane,
  // on a GPU.
  void waited(int collective, int behind, double seconds, FencePairs waits);
  // Compute continues after the work that followed an event.
  void passed(const FencePairs& waits);
  void gathered(schedule::ParameterId id, double seconds);
  void reduced(double seconds, std::int64_t bytes) {
    reduce_seconds_ += seconds;
    reduce_bytes_ += static_cast<double>(bytes);
  }

  // Takes the maximum of each cost over the ranks of the class; collective. The traces must have been compared. Returns
  // the smallest `room`.
  std::int64_t agree(const schedule::Trace& trace, std::size_t parameters, std::int64_t room, Agreement& agreement);
  // Returns the costs of a schedule for the trace that was agreed on.
  schedule::Costs costs(const schedule::Trace& trace, const schedule::Schedule& schedule,
                        const std::vector<schedule::ParameterSize>& sizes) const;

 private:
  // The time on a GPU before an event.
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
  base::Fence begin_;            // beginning of the next segment; default-constructed before the first
  std::size_t waits_seen_ = 0;   // before it
  std::vector<double> gathers_;  // by parameter
  double reduce_seconds_ = 0, reduce_bytes_ = 0;
  schedule::Costs agreed_;
  double seconds_per_byte_ = 0;  // of reductions
};

}  // namespace tessera::runtime
