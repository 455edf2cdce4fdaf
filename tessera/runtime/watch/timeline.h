// A measured timeline of a step: spans of compute, of its waits, and of the work of each lane. No timeline is recorded
// by default. When recording is enabled, the host stores its own times, and lanes mark the times between their
// operations.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "tessera/base/fence.h"
#include "tessera/base/lane_mark.h"
#include "tessera/schedule/activity.h"
#include "tessera/schedule/events.h"
#include "tessera/schedule/schedule.h"
#include "tessera/shard/parallel_groups.h"
#include "tessera/shard/recording.h"

namespace tessera::runtime {

struct TimelineSpan {
  schedule::Activity activity = schedule::Activity::compute;
  bool is_wait = false;  // compute waited, for `activity`
  // Index of the event of the span: the next event for compute and waits; a gather's first consume, a reduction's last
  // produce, a publish, a comm. The size of the trace if there is no later event.
  int event = 0;
  int microbatch = -1;  // of that event; -1 for compute and waits
  schedule::Pass pass = schedule::Pass::forward;
  std::vector<schedule::ParameterId> weights;
  std::int64_t bytes = 0;     // received from other ranks; for comm, the event's bytes
  double begin = 0, end = 0;  // seconds from the beginning of the step; negative for gathers that begin earlier
};

// A point in time of compute: seconds of the host's clock on a CPU, a timed fence on a GPU.
struct Moment {
  double seconds = 0;
  base::Fence fence;
};
Moment compute_now(const shard::ParallelGroups& parallel);

// Belongs to one rank; used by one thread. Only the marks run on lanes.
class Timeline {
 public:
  // `parallel` outlives the timeline; pending marks do not need it.
  explicit Timeline(const shard::ParallelGroups& parallel) : parallel_(parallel) {}

  // Enables or disables recording. Timelines are complete from the next begin_step on, including earlier gathers for
  // that step. Disabling drops the spans.
  void record(bool on);
  bool is_enabled() const { return on_; }

  void begin_step();
  void begin_event(std::size_t event);  // compute has reached the event
  void end_event(std::size_t next);     // compute continues
  void waited(const Moment& begin, const Moment& end, schedule::Activity activity,
              std::span<const schedule::ParameterId> weights);
  // began: the last event is a collective. finished: compute has waited for that collective. event: the index of the
  // collective.
  void began(int event);
  void finished(int event, const schedule::Event& comm);

  // Returns a mark for work that is enqueued next. what: its span without times. is_ahead: the work is for the next
  // step.
  base::LaneMark mark(TimelineSpan what, bool is_ahead = false);

  // Returns the spans of the last step begun: everything that ended or was waited for. On a GPU, compute's lane must be
  // idle.
  std::vector<TimelineSpan> spans() const;

 private:
  struct Marked {
    TimelineSpan span;
    std::shared_ptr<base::LaneTimes> times;  // null: begin and end
    Moment begin, end;
    bool is_ahead = false;
  };
  void compute_until(const Moment& now);
  double seconds(const Moment& moment) const;  // since the beginning of the step

  const shard::ParallelGroups& parallel_;
  bool on_ = false, in_event_ = false;
  int event_ = 0;  // the next
  Moment begin_, computes_since_;
  std::map<int, Moment> collectives_;  // that have begun
  std::vector<Marked> marked_;
};

// Returns the recording of an operation for `trace[event]`. The recording does nothing while `timeline` is disabled.
shard::Recording record(Timeline& timeline, const schedule::Trace& trace, std::size_t event,
                        std::span<const schedule::ParameterId> weights, bool is_ahead = false);

// Measures a wait of the host: adds its lifetime to `seconds` and makes a span of it.
class TimedWait {
 public:
  TimedWait(const shard::ParallelGroups& parallel, double& seconds, Timeline& timeline, schedule::Activity activity,
            std::span<const schedule::ParameterId> weights = {});
  ~TimedWait();
  TimedWait(const TimedWait&) = delete;
  TimedWait& operator=(const TimedWait&) = delete;

 private:
  const shard::ParallelGroups& parallel_;
  double& seconds_;
  Timeline& timeline_;
  schedule::Activity activity_;
  std::span<const schedule::ParameterId> weights_;
  Moment begin_;
};

}  // namespace tessera::runtime
