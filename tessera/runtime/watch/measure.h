// Measures the durations of a recorded step and computes costs that are equal on every rank.
#pragma once
#include <functional>
#include <vector>

#include "tessera/runtime/watch/agreement.h"
#include "tessera/runtime/watch/fence_pairs.h"
#include "tessera/runtime/watch/statistics.h"
#include "tessera/schedule/simulate.h"

namespace tessera::runtime {

// Measures the events of a step that runs on demand, on one rank. A segment is the time before an event, without the
// host's waits for communication. On a GPU, a segment is the time between two timed fences in compute's stream, without
// the host's work between two events.
class Measure {
 public:
  explicit Measure(const shard::ParallelGroups& parallel) : parallel_(parallel) {}

  void begin_step();
  // Called when the event at this index of the trace is recorded. `waits` are the waits of compute's lane since the
  // step began.
  void event(std::size_t index, const StepStatistics& statistics, const FencePairs& waits);
  // Called when compute has waited for a collective of the program. All ranks of a class call it for the same
  // collectives. collective: the index of the collective's event.
  // behind: the index of the last event before the wait. seconds: the duration of the host's wait. waits: on a GPU, the
  // waits of compute's lane.
  void waited(int collective, int behind, double seconds, FencePairs waits);
  // Called when the work of an event is done and compute continues.
  void passed(const FencePairs& waits);
  void gathered(schedule::ParameterId id, double seconds);
  // Calls make(), which enqueues the columnwise copy of a weight on compute, and measures it. The copy belongs to no
  // segment.
  void copied(schedule::ParameterId id, const std::function<void()>& make);
  void reduced(double seconds, std::int64_t bytes) {
    reduce_seconds_ += seconds;
    reduce_bytes_ += static_cast<double>(bytes);
  }

  // Replaces each cost by its maximum over the ranks of the class. Collective. The traces must have been compared
  // before. Throws Error if ranks waited at different positions. Returns the minimum of `room` over these ranks.
  std::int64_t agree(const schedule::Trace& trace, std::size_t parameters, std::int64_t room, Agreement& agreement);
  // Returns the costs of a schedule for the trace of the last agree().
  schedule::Costs costs(const schedule::Trace& trace, const schedule::Schedule& schedule,
                        const std::vector<schedule::ParameterSize>& sizes) const;

 private:
  // A columnwise copy on a GPU.
  struct Copy {
    schedule::ParameterId id = 0;
    base::Fence begin, end;
  };
  // A segment on a GPU.
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
  std::vector<double> segments_;  // by event: seconds of the segment before the event
  std::vector<Stretch> stretches_;
  std::vector<CollectiveWait> collective_waits_;
  base::Fence begin_;           // beginning of the next segment; default-constructed before the first segment
  std::size_t waits_seen_ = 0;  // number of compute's waits before begin_
  std::vector<Copy> copies_on_device_;
  std::vector<double> gathers_, copies_;  // by parameter: seconds of its gather and of its columnwise copy
  double reduce_seconds_ = 0, reduce_bytes_ = 0;
  schedule::Costs agreed_;
  double seconds_per_byte_ = 0;  // seconds that reductions take for each byte
};

}  // namespace tessera::runtime
