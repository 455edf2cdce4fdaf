#include "tessera/runtime/measure.h"

#include <algorithm>

#include "tessera/schedule/plan/plan.h"
#include "tessera/schedule/way_costs.h"
#include "tessera/shard/host_time.h"

namespace tessera::runtime {

void Measure::begin_step() {
  segments_.clear();
  waits_.clear();
  std::ranges::fill(gathers_, 0.0);
  reduce_seconds_ = reduce_bytes_ = waited_ = 0;
  stretches_.clear();
  begin_ = {};
  waits_seen_ = 0;
  last_ = host_seconds(parallel_);
}

void Measure::add(std::size_t event, double seconds, double waited) {
  segments_.resize(event + 1);
  waits_.resize(event + 1);
  segments_[event] = std::max(0.0, seconds - waited);
  waits_[event] = waited;
}

void Measure::event(std::size_t index, const StepStatistics& statistics, const FencePairs& waits) {
  if (parallel_.is_asynchronous()) {
    const base::Fence end = parallel_.compute->record_timed();
    stretches_.push_back({.event = index,
                          .begin = begin_.state() ? begin_ : end,
                          .end = end,
                          .waits = {waits.begin() + static_cast<std::ptrdiff_t>(waits_seen_), waits.end()}});
    return;
  }
  const double now = host_seconds(parallel_);
  add(index, now - last_, statistics.exposed_seconds - waited_);
  last_ = now;
  waited_ = statistics.exposed_seconds;
}

void Measure::passed(const FencePairs& waits) {
  if (!parallel_.is_asynchronous()) return;
  begin_ = parallel_.compute->record_timed();
  waits_seen_ = waits.size();
}

void Measure::read_stretches() {
  if (stretches_.empty()) return;
  parallel_.compute->synchronize();
  for (const Stretch& it : stretches_) add(it.event, it.end.seconds_since(it.begin), seconds_of(it.waits));
}

void Measure::gathered(schedule::ParameterId id, double seconds) {
  gathers_.resize(std::max(gathers_.size(), static_cast<std::size_t>(id) + 1));
  double& longest = gathers_[static_cast<std::size_t>(id)];
  longest = std::max(longest, seconds);
}

std::int64_t Measure::agree(const schedule::Trace& trace, std::size_t parameters, std::int64_t room,
                            Agreement& agreement, const Entries& entries) {
  read_stretches();
  segments_.resize(trace.size());
  waits_.resize(trace.size());
  gathers_.resize(parameters);
  std::vector<double> all = segments_;
  all.insert(all.end(), waits_.begin(), waits_.end());
  all.insert(all.end(), gathers_.begin(), gathers_.end());
  all.push_back(reduce_bytes_ > 0 ? reduce_seconds_ / reduce_bytes_ : 0);
  all.push_back(-static_cast<double>(room));
  agreement.wait(parallel_.alike->all_reduce(all.data(), static_cast<std::int64_t>(all.size()), quant::DType::fp64,
                                             comm::ReduceOp::max),
                 entries);
  auto at = all.begin();
  agreed_.segment_seconds.assign(at, at + static_cast<std::ptrdiff_t>(trace.size()));
  at += static_cast<std::ptrdiff_t>(trace.size());
  // The wait before an event is for the collective that is the event before it; other waits are the schedule's matter.
  agreed_.comm_seconds.assign(trace.size(), 0.0);
  for (std::size_t i = 1; i < trace.size(); ++i)
    if (trace[i - 1].kind == schedule::EventKind::comm)
      agreed_.comm_seconds[i - 1] = at[static_cast<std::ptrdiff_t>(i)];
  at += static_cast<std::ptrdiff_t>(trace.size());
  gathers_.assign(at, at + static_cast<std::ptrdiff_t>(parameters));
  seconds_per_byte_ = all[all.size() - 2];
  return room == schedule::kUnlimited ? room : static_cast<std::int64_t>(-all.back());
}

schedule::Costs Measure::costs(const schedule::Trace& trace, const schedule::Schedule& schedule,
                               const std::vector<schedule::ParameterSize>& sizes) const {
  schedule::Costs costs = agreed_;
  costs.shared_link = parallel_.is_asynchronous();  // of GPUs
  set_way_costs(
      trace, sizes, schedule,
      [this](schedule::Activity, std::int64_t bytes) { return static_cast<double>(bytes) * seconds_per_byte_; }, costs);
  // Gathers were measured themselves, with all their hops.
  costs.gather_seconds.clear(), costs.gather_compute_seconds.clear();
  for (const schedule::Unit& unit : schedule.gather_units) {
    double seconds = 0;
    for (const schedule::ParameterId id : unit) seconds += gathers_[static_cast<std::size_t>(id)];
    costs.gather_seconds.push_back(seconds);
  }
  return costs;
}

}  // namespace tessera::runtime
