// A measured timeline of a step: when compute works, when compute waits, and when each lane works. By default no
// timeline is recorded. While recording is enabled, the host stores its times, and lanes store the times before and
// after their operations.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "tessera/base/lanes/fence.h"
#include "tessera/base/lanes/lane_mark.h"
#include "tessera/mesh/transfer.h"
#include "tessera/schedule/events.h"
#include "tessera/schedule/schedule.h"
#include "tessera/shard/parallel_groups.h"
#include "tessera/shard/ways/recording.h"

namespace tessera::runtime {

struct TimelineSpan {
  std::optional<mesh::Transfer> transfer;  // nullopt: work of compute
  bool is_wait = false;                    // true: compute waited for `transfer`
  // Index of the span's event. compute and waits: the next event, or the size of the trace after the last event.
  // gather: the first consume event. reduction: the last produce event. Other spans: their publish or comm event.
  int event = 0;
  int microbatch = -1;  // microbatch of the event; -1 for compute and waits
  schedule::Pass pass = schedule::Pass::forward;
  std::vector<schedule::ParameterId> weights;
  std::int64_t bytes = 0;  // bytes received from other ranks; for program: the bytes of the event
  // Seconds since the beginning of the step; negative for gathers that begin before the step.
  double begin = 0, end = 0;
};

// A point in time of compute. On a CPU, `seconds` is the host's clock. On a GPU, `fence` is a timed fence.
struct Moment {
  double seconds = 0;
  base::Fence fence;
};
Moment compute_now(const shard::ParallelGroups& parallel);

// Belongs to one rank; used by one thread. Only the marks that mark() returns run on lanes.
class Timeline {
 public:
  // `parallel` outlives the timeline. Marks that are still pending may outlive `parallel`.
  explicit Timeline(const shard::ParallelGroups& parallel) : parallel_(parallel) {}

  // Enables or disables recording. After enabling, the timeline of the next step is complete, including prefetches for
  // that step. Disabling drops the recorded spans.
  void record(bool on);
  bool is_enabled() const { return on_; }

  void begin_step();
  void begin_event(std::size_t event);  // called when compute has reached the event
  void end_event(std::size_t next);     // called when compute continues after an event
  void waited(const Moment& begin, const Moment& end, mesh::Transfer transfer,
              std::span<const schedule::ParameterId> weights);
  // began is called after a collective of the program was issued. finished is called when compute has waited for the
  // collective. `event` is the index of the collective.
  void began(int event);
  void finished(int event, const schedule::Event& comm);

  // Returns a mark that records the times of the work that is enqueued next. `what` is the span without its times.
  // `is_ahead` is true if the work is for the next step.
  base::LaneMark mark(TimelineSpan what, bool is_ahead = false);

  // Returns the spans of the last step begun that have ended. On a GPU, compute's lane must be idle.
  std::vector<TimelineSpan> spans() const;

 private:
  struct Marked {
    TimelineSpan span;
    std::shared_ptr<base::LaneTimes> times;  // null: the times are in `begin` and `end`
    Moment begin, end;
    bool is_ahead = false;
  };
  void compute_until(const Moment& now);
  double seconds(const Moment& moment) const;  // seconds since the beginning of the step

  const shard::ParallelGroups& parallel_;
  bool on_ = false, in_event_ = false;
  int event_ = 0;  // index of the next event
  Moment begin_, computes_since_;
  std::map<int, Moment> collectives_;  // by event of a collective in flight: the time when it began
  std::vector<Marked> marked_;
};

// Returns a recording of an operation that belongs to trace[event]. The recording does nothing while `timeline` is
// disabled.
shard::Recording record(Timeline& timeline, const schedule::Trace& trace, std::size_t event,
                        std::span<const schedule::ParameterId> weights, bool is_ahead = false);

// Measures a wait of the host, which lasts as long as this object. The destructor adds the duration to `seconds` and
// adds a span to the timeline.
class TimedWait {
 public:
  TimedWait(const shard::ParallelGroups& parallel, double& seconds, Timeline& timeline, mesh::Transfer transfer,
            std::span<const schedule::ParameterId> weights = {});
  ~TimedWait();
  TimedWait(const TimedWait&) = delete;
  TimedWait& operator=(const TimedWait&) = delete;

 private:
  const shard::ParallelGroups& parallel_;
  double& seconds_;
  Timeline& timeline_;
  mesh::Transfer transfer_;
  std::span<const schedule::ParameterId> weights_;
  Moment begin_;
};

}  // namespace tessera::runtime
