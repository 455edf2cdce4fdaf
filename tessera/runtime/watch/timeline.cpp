#include "tessera/runtime/watch/timeline.h"

#include <cmath>
#include <memory>
#include <utility>

#include "tessera/shard/host_time.h"

namespace tessera::runtime {

Moment compute_now(const shard::ParallelGroups& parallel) {
  if (parallel.is_asynchronous()) return {.fence = parallel.compute->record_timed()};
  return {.seconds = host_seconds(parallel), .fence = {}};
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
  collectives_.clear();
  begin_ = computes_since_ = compute_now(parallel_);
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
  computes_since_ = compute_now(parallel_);
}

void Timeline::waited(const Moment& begin, const Moment& end, mesh::Transfer transfer,
                      std::span<const schedule::ParameterId> weights) {
  if (!on_ || (!end.fence.state() && end.seconds <= begin.seconds)) return;
  if (!in_event_) compute_until(begin);
  computes_since_ = end;
  marked_.push_back(
      {.span = {.transfer = transfer, .is_wait = true, .event = event_, .weights = {weights.begin(), weights.end()}},
       .times = nullptr,
       .begin = begin,
       .end = end});
}

void Timeline::began(int event) {
  if (on_) collectives_[event] = compute_now(parallel_);
}

void Timeline::finished(int event, const schedule::Event& comm) {
  const auto begun = collectives_.find(event);
  if (!on_ || begun == collectives_.end()) return;
  TimelineSpan span{.transfer = mesh::Transfer::program,
                    .event = event,
                    .microbatch = comm.microbatch,
                    .pass = comm.pass,
                    .bytes = comm.bytes};
  if (comm.parameter >= 0) span.weights.push_back(comm.parameter);
  marked_.push_back({.span = std::move(span), .times = nullptr, .begin = begun->second, .end = compute_now(parallel_)});
}

base::LaneMark Timeline::mark(TimelineSpan what, bool is_ahead) {
  if (!on_) return {};
  auto times = std::make_shared<base::LaneTimes>();
  marked_.push_back({.span = std::move(what), .times = times, .is_ahead = is_ahead});
  return base::LaneMark(std::move(times));
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

shard::Recording record(Timeline& timeline, const schedule::Trace& trace, std::size_t event,
                        std::span<const schedule::ParameterId> weights, bool is_ahead) {
  if (!timeline.is_enabled()) return {};
  TimelineSpan what{.event = static_cast<int>(event), .weights = {weights.begin(), weights.end()}};
  if (event < trace.size()) {
    what.microbatch = trace[event].microbatch;
    what.pass = trace[event].pass;
  }
  return shard::Recording([&timeline, what = std::move(what), is_ahead](mesh::Transfer transfer, std::int64_t bytes) {
    TimelineSpan span = what;
    span.transfer = transfer;
    span.bytes = bytes;
    return timeline.mark(std::move(span), is_ahead);
  });
}

TimedWait::TimedWait(const shard::ParallelGroups& parallel, double& seconds, Timeline& timeline,
                     mesh::Transfer transfer, std::span<const schedule::ParameterId> weights)
    : parallel_(parallel),
      seconds_(seconds),
      timeline_(timeline),
      transfer_(transfer),
      weights_(weights),
      begin_(compute_now(parallel)) {}

TimedWait::~TimedWait() {
  const Moment end = compute_now(parallel_);
  seconds_ += end.seconds - begin_.seconds;
  timeline_.waited(begin_, end, transfer_, weights_);
}

}  // namespace tessera::runtime
