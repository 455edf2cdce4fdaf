// What a step did and when, as measured: spans of compute, of what it waited for, and of what each lane carried out.
// Off until asked for; then the host notes its own times, and lanes mark theirs between their work.
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
  // Index of the event that it is for: the next one of compute and of a wait; a gather's first consume, a reduction's
  // last produce, a publish, a comm. At the end of the trace: none.
  int event = 0;
  int microbatch = -1;  // of that event, but for compute and waits
  schedule::Pass pass = schedule::Pass::forward;
  std::vector<schedule::ParameterId> weights;
  std::int64_t bytes = 0;     // received from other ranks; of comm: the event's
  double begin = 0, end = 0;  // seconds from the beginning of the step; gathers for it may begin before
};

// A point in time that compute has come to: seconds of the host's clock where compute is the host, else a timed fence.
struct Moment {
  double seconds = 0;
  base::Fence fence;
};
Moment compute_now(const shard::ParallelGroups& parallel);

// One rank's. Used by one thread; only the marks run on lanes.
class Timeline {
 public:
  // `parallel` outlives the timeline; marks under way do not need it.
  explicit Timeline(const shard::ParallelGroups& parallel) : parallel_(parallel) {}

  // Turned on, it is complete from the next begin_step on, and includes gathers for that step that are issued before;
  // turned off, it forgets.
  void record(bool on);
  bool is_on() const { return on_; }

  void begin_step();
  void begin_event(std::size_t event);  // compute has come to it
  void end_event(std::size_t next);     // ... and goes on
  void waited(const Moment& begin, const Moment& end, schedule::Activity activity,
              std::span<const schedule::ParameterId> weights);
  // The event just over is a collective; and it has now been waited for. event: its place.
  void began(int event);
  void finished(int event, const schedule::Event& comm);

  // What is about to be enqueued; `what` without times. is_ahead: it is for the next step.
  base::LaneMark mark(TimelineSpan what, bool is_ahead = false);

  // Of the last step begun: all that was waited for or has ended. On a GPU compute's lane must have come to its end.
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

// Of an operation for `trace[event]`; nothing while `timeline` is off.
shard::Recording record(Timeline& timeline, const schedule::Trace& trace, std::size_t event,
                        std::span<const schedule::ParameterId> weights, bool is_ahead = false);

// The host waits while this lives: the time is added to `seconds` and is a span.
class Waiting {
 public:
  Waiting(const shard::ParallelGroups& parallel, double& seconds, Timeline& timeline, schedule::Activity activity,
          std::span<const schedule::ParameterId> weights = {});
  ~Waiting();
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  const shard::ParallelGroups& parallel_;
  double& seconds_;
  Timeline& timeline_;
  schedule::Activity activity_;
  std::span<const schedule::ParameterId> weights_;
  Moment begin_;
};

}  // namespace tessera::runtime
