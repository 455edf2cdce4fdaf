#include "tessera/shard/timeline.h"

#include <atomic>
#include <cmath>
#include <limits>
#include <utility>

#include "tessera/shard/host_time.h"

namespace tessera::shard {

struct LaneMark::Times {
  // Written by the lane; NaN before.
  std::atomic<double> begin = std::numeric_limits<double>::quiet_NaN();
  std::atomic<double> end = std::numeric_limits<double>::quiet_NaN();
  base::Fence begin_fence, end_fence;  // of a stream, instead
};

Moment compute_now(const Parallel& parallel) {
  if (parallel.is_asynchronous()) return {.fence = parallel.compute->record_timed()};
  return {.seconds = host_seconds(parallel), .fence = {}};
}

void LaneMark::begin(base::Lane& lane) const {
  if (!times_) return;
  if (lane.stream()) {
    if (!times_->begin_fence.state()) times_->begin_fence = lane.record_timed();
    return;
  }
  lane.run([times = times_, clock = lane.clock()] {
    if (std::isnan(times->begin)) times->begin = seconds_on(clock);
  });
}

base::Fence LaneMark::end(base::Lane& lane, const base::Fence& done) const {
  if (!times_) return done;
  if (lane.stream()) return times_->end_fence = lane.record_timed();
  lane.run([times = times_, clock = lane.clock()] { times->end = seconds_on(clock); });
  return lane.record();
}

void Timeline::record(bool on) {
  if (std::exchange(on_, on) == on) return;
  marked_.clear();
}

void Timeline::begin_step() {
  if (!on_) return;
  std::erase_if(marked_, [](const Marked& marked) { return !marked.is_ahead; });
  for (Marked& marked : marked_) marked.is_ahead = false;
  event_ = 0;
  in_event_ = false;
  begin_ = computes_since_ = last_event_ = compute_now(parallel_);
}

void Timeline::compute_until(const Moment& now) {
  marked_.push_back({.span = {.event = event_}, .times = nullptr, .begin = computes_since_, .end = now});
  computes_since_ = now;
}

double Timeline::seconds(const Moment& moment) const {
  return begin_.fence.state() ? moment.fence.seconds_since(begin_.fence) : moment.seconds - begin_.seconds;
}

void Timeline::begin_event(std::size_t event) {
  if (!on_) return;
  event_ = static_cast<int>(event);
  compute_until(compute_now(parallel_));
  in_event_ = true;
}

void Timeline::end_event(std::size_t next) {
  if (!on_) return;
  in_event_ = false;
  event_ = static_cast<int>(next);
  computes_since_ = last_event_ = compute_now(parallel_);
}

void Timeline::waited(const Moment& begin, const Moment& end, Activity activity, std::span<const ParameterId> weights) {
  if (!on_ || (!end.fence.state() && end.seconds <= begin.seconds)) return;
  if (!in_event_) compute_until(begin);
  computes_since_ = end;
  marked_.push_back(
      {.span = {.activity = activity, .is_wait = true, .event = event_, .weights = {weights.begin(), weights.end()}},
       .times = nullptr,
       .begin = begin,
       .end = end});
}

void Timeline::finished(const Event& comm) {
  if (!on_) return;
  TimelineSpan span{.activity = Activity::comm,
                    .event = event_ - 1,
                    .microbatch = comm.microbatch,
                    .pass = comm.pass,
                    .bytes = comm.bytes};
  if (comm.parameter >= 0) span.weights.push_back(comm.parameter);
  marked_.push_back({.span = std::move(span), .times = nullptr, .begin = last_event_, .end = compute_now(parallel_)});
}

LaneMark Timeline::mark(TimelineSpan what, bool is_ahead) {
  LaneMark mark;
  if (!on_) return mark;
  mark.times_ = std::make_shared<LaneMark::Times>();
  marked_.push_back({.span = std::move(what), .times = mark.times_, .is_ahead = is_ahead});
  return mark;
}

std::vector<TimelineSpan> Timeline::spans() const {
  std::vector<TimelineSpan> spans;
  for (const Marked& marked : marked_) {
    if (marked.is_ahead) continue;
    TimelineSpan span = marked.span;
    Moment begin = marked.begin, end = marked.end;
    if (marked.times) {
      begin = {.seconds = marked.times->begin, .fence = marked.times->begin_fence};
      end = {.seconds = marked.times->end, .fence = marked.times->end_fence};
      if (begin_.fence.state() && (!begin.fence.done() || !end.fence.done() || !end.fence.state())) continue;
    }
    span.begin = seconds(begin);
    span.end = seconds(end);
    if (std::isnan(span.begin) || std::isnan(span.end)) continue;
    if (!marked.times && span.end <= span.begin) continue;
    spans.push_back(std::move(span));
  }
  return spans;
}

LaneMark Recording::mark(Activity activity, std::int64_t bytes) const {
  if (!timeline) return {};
  TimelineSpan span = what;
  span.activity = activity;
  span.bytes = bytes;
  return timeline->mark(std::move(span), is_ahead);
}

Recording record(Timeline& timeline, const Trace& trace, std::size_t event, std::span<const ParameterId> weights,
                 bool is_ahead) {
  if (!timeline.is_on()) return {};
  Recording recording{.timeline = &timeline,
                      .what = {.event = static_cast<int>(event), .weights = {weights.begin(), weights.end()}},
                      .is_ahead = is_ahead};
  if (event < trace.size()) {
    recording.what.microbatch = trace[event].microbatch;
    recording.what.pass = trace[event].pass;
  }
  return recording;
}

Waiting::Waiting(const Parallel& parallel, double& seconds, Timeline& timeline, Activity activity,
                 std::span<const ParameterId> weights)
    : parallel_(parallel),
      seconds_(seconds),
      timeline_(timeline),
      activity_(activity),
      weights_(weights),
      begin_(compute_now(parallel)) {}

Waiting::~Waiting() {
  const Moment end = compute_now(parallel_);
  seconds_ += end.seconds - begin_.seconds;
  timeline_.waited(begin_, end, activity_, weights_);
}

}  // namespace tessera::shard
