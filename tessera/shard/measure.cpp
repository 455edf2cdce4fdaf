#include "tessera/shard/measure.h"

#include <algorithm>

#include "tessera/shard/host_time.h"
#include "tessera/shard/plan.h"

namespace tessera::shard {

void Measure::begin_step() {
  segments_.clear();
  waits_.clear();
  std::ranges::fill(gathers_, 0.0);
  reduce_seconds_ = reduce_bytes_ = waited_ = 0;
  begins_.clear();
  ends_.clear();
  waits_within_.clear();
  waits_seen_ = 0;
  last_ = host_seconds(parallel_);
}

void Measure::event(const StepStatistics& statistics, const FencePairs& waits) {
  if (parallel_.is_asynchronous()) {
    ends_.push_back(parallel_.compute->record_timed());
    begins_.resize(ends_.size(), ends_.back());  // without a mark: the first, or behind a departure
    waits_within_.emplace_back(waits.begin() + static_cast<std::ptrdiff_t>(waits_seen_), waits.end());
    waits_seen_ = waits.size();
    return;
  }
  const double now = host_seconds(parallel_), waited = statistics.exposed_seconds - waited_;
  segments_.push_back(std::max(0.0, now - last_ - waited));
  waits_.push_back(waited);
  last_ = now;
  waited_ = statistics.exposed_seconds;
}

void Measure::passed() {
  if (!parallel_.is_asynchronous()) return;
  begins_.resize(ends_.size() + 1);
  begins_.back() = parallel_.compute->record_timed();
}

void Measure::read_fences() {
  if (!parallel_.is_asynchronous()) return;
  parallel_.compute->synchronize();
  for (std::size_t event = 0; event < ends_.size(); ++event) {
    const double waited = seconds_of(waits_within_[event]);
    segments_.push_back(std::max(0.0, ends_[event].seconds_since(begins_[event]) - waited));
    waits_.push_back(waited);
  }
}

void Measure::gathered(ParameterId id, double seconds) {
  gathers_.resize(std::max(gathers_.size(), static_cast<std::size_t>(id) + 1));
  double& longest = gathers_[static_cast<std::size_t>(id)];
  longest = std::max(longest, seconds);
}

std::int64_t Measure::agree(const Trace& trace, std::size_t parameters, std::int64_t room, Agreement& agreement,
                            const Entries& entries) {
  read_fences();
  segments_.resize(trace.size());
  waits_.resize(trace.size());
  gathers_.resize(parameters);
  std::vector<double> all = segments_;
  all.insert(all.end(), waits_.begin(), waits_.end());
  all.insert(all.end(), gathers_.begin(), gathers_.end());
  all.push_back(reduce_bytes_ > 0 ? reduce_seconds_ / reduce_bytes_ : 0);
  all.push_back(-static_cast<double>(room));
  agreement.wait(parallel_.world->all_reduce(all.data(), static_cast<std::int64_t>(all.size()), base::DType::fp64,
                                             comm::ReduceOp::max),
                 entries);
  auto at = all.begin();
  agreed_.segment_seconds.assign(at, at + static_cast<std::ptrdiff_t>(trace.size()));
  at += static_cast<std::ptrdiff_t>(trace.size());
  // The wait before an event is for the collective that is the event before it; other waits are the schedule's matter.
  agreed_.comm_seconds.assign(trace.size(), 0.0);
  for (std::size_t i = 1; i < trace.size(); ++i)
    if (trace[i - 1].kind == EventKind::comm) agreed_.comm_seconds[i - 1] = at[static_cast<std::ptrdiff_t>(i)];
  at += static_cast<std::ptrdiff_t>(trace.size());
  gathers_.assign(at, at + static_cast<std::ptrdiff_t>(parameters));
  seconds_per_byte_ = all[all.size() - 2];
  return room == kUnlimited ? room : static_cast<std::int64_t>(-all.back());
}

Costs Measure::costs(const Trace& trace, const Schedule& schedule, const std::vector<ParameterSize>& sizes) const {
  Costs costs = agreed_;
  costs.shared_link = parallel_.is_asynchronous();  // of GPUs
  costs.publish_seconds.assign(trace.size(), 0.0);
  for (std::size_t i = 0; i < trace.size(); ++i)
    if (trace[i].kind == EventKind::publish)
      costs.publish_seconds[i] =
          static_cast<double>(sizes[static_cast<std::size_t>(trace[i].parameter)].publish_wire) * seconds_per_byte_;
  for (const Unit& unit : schedule.gather_units) {
    double seconds = 0;
    for (const ParameterId id : unit) seconds += gathers_[static_cast<std::size_t>(id)];
    costs.gather_seconds.push_back(seconds);
  }
  for (const Unit& unit : schedule.reduce_units) {
    double bytes = 0, replicas = 0;
    for (const ParameterId id : unit) {
      bytes += static_cast<double>(sizes[static_cast<std::size_t>(id)].reduce_wire);
      replicas += static_cast<double>(sizes[static_cast<std::size_t>(id)].replica_wire);
    }
    costs.reduce_seconds.push_back(bytes * seconds_per_byte_);
    costs.replica_seconds.push_back(replicas * seconds_per_byte_);
  }
  return costs;
}

}  // namespace tessera::shard
