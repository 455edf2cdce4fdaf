#include "tessera/runtime/watch/measure.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>

#include "tessera/schedule/plan/plan.h"
#include "tessera/schedule/way_costs.h"
#include "tessera/shard/host_time.h"

namespace tessera::runtime {

namespace {

// Raises the number of a parameter.
void raise(std::vector<double>& seconds, schedule::ParameterId id, double value) {
  seconds.resize(std::max(seconds.size(), static_cast<std::size_t>(id) + 1));
  double& longest = seconds[static_cast<std::size_t>(id)];
  longest = std::max(longest, value);
}

std::vector<double> by_unit(const std::vector<schedule::Unit>& units, const std::vector<double>& by_parameter) {
  std::vector<double> sums;
  for (const schedule::Unit& unit : units) {
    sums.push_back(0);
    for (const schedule::ParameterId id : unit) sums.back() += by_parameter[static_cast<std::size_t>(id)];
  }
  return sums;
}

}  // namespace

void Measure::begin_step() {
  segments_.clear();
  std::ranges::fill(gathers_, 0.0);
  std::ranges::fill(copies_, 0.0);
  copies_on_device_.clear();
  reduce_seconds_ = reduce_bytes_ = waited_ = 0;
  stretches_.clear();
  collective_waits_.clear();
  begin_ = {};
  waits_seen_ = 0;
  last_ = host_seconds(parallel_);
}

void Measure::add(std::size_t event, double seconds, double waited) {
  segments_.resize(event + 1);
  segments_[event] = std::max(0.0, seconds - waited);
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

void Measure::waited(int collective, int behind, double seconds, FencePairs waits) {
  collective_waits_.push_back({collective, behind, seconds, std::move(waits)});
}

void Measure::passed(const FencePairs& waits) {
  if (!parallel_.is_asynchronous()) return;
  begin_ = parallel_.compute->record_timed();
  waits_seen_ = waits.size();
}

void Measure::read_stretches() {
  if (stretches_.empty()) return;
  parallel_.compute->synchronize();
  for (const Copy& it : copies_on_device_) raise(copies_, it.id, it.end.seconds_since(it.begin));
  for (const Stretch& it : stretches_) add(it.event, it.end.seconds_since(it.begin), seconds_of(it.waits));
}

void Measure::gathered(schedule::ParameterId id, double seconds) {
  raise(gathers_, id, seconds);
}

void Measure::copied(schedule::ParameterId id, const std::function<void()>& make) {
  if (parallel_.is_asynchronous()) {
    const base::Fence begin = parallel_.compute->record_timed();
    make();
    copies_on_device_.push_back({.id = id, .begin = begin, .end = parallel_.compute->record_timed()});
    return;
  }
  const double begin = host_seconds(parallel_);
  make();
  const double seconds = host_seconds(parallel_) - begin;
  last_ += seconds;  // the segment before the next event does not include the copy
  raise(copies_, id, seconds);
}

std::int64_t Measure::agree(const schedule::Trace& trace, std::size_t parameters, std::int64_t room,
                            Agreement& agreement) {
  read_stretches();
  segments_.resize(trace.size());
  gathers_.resize(parameters);
  copies_.resize(parameters);
  std::vector<double> waited(trace.size());  // index: event of the collective; seconds that compute waited for it
  agreed_.comm_waits.resize(trace.size());
  std::iota(agreed_.comm_waits.begin(), agreed_.comm_waits.end(), 0);
  for (const CollectiveWait& it : collective_waits_) {
    waited[static_cast<std::size_t>(it.collective)] = it.seconds + seconds_of(it.waits);
    agreed_.comm_waits[static_cast<std::size_t>(it.collective)] = it.behind;
  }
  std::uint64_t positions = 0;
  for (const int position : agreed_.comm_waits)
    positions = positions * 1'000'003 + static_cast<std::uint64_t>(position);
  agreement.compare(*parallel_.rank_class, positions, "the place of waits for collectives");
  std::vector<double> all = segments_;
  all.insert(all.end(), waited.begin(), waited.end());
  all.insert(all.end(), gathers_.begin(), gathers_.end());
  all.insert(all.end(), copies_.begin(), copies_.end());
  all.push_back(reduce_bytes_ > 0 ? reduce_seconds_ / reduce_bytes_ : 0);
  all.push_back(-static_cast<double>(room));
  agreement.wait(parallel_.rank_class->all_reduce(all.data(), static_cast<std::int64_t>(all.size()), quant::DType::fp64,
                                                  comm::ReduceOp::max));
  auto at = all.begin();
  agreed_.segment_seconds.assign(at, at + static_cast<std::ptrdiff_t>(trace.size()));
  at += static_cast<std::ptrdiff_t>(trace.size());
  agreed_.comm_seconds.assign(at, at + static_cast<std::ptrdiff_t>(trace.size()));
  at += static_cast<std::ptrdiff_t>(trace.size());
  // The time of a collective that compute waited for is the time of the work before the wait plus the time of the wait.
  // The host of a GPU is ahead of the device, so it may not have noticed that a collective was already done. In this
  // case the measured time is too long. The time of a collective that the host found done is 0.
  for (std::size_t i = 0; i < trace.size(); ++i)
    if (double& seconds = agreed_.comm_seconds[i]; seconds > 0)
      for (int meanwhile = static_cast<int>(i) + 1; meanwhile <= agreed_.comm_waits[i]; ++meanwhile)
        seconds += agreed_.segment_seconds[static_cast<std::size_t>(meanwhile)];
  gathers_.assign(at, at + static_cast<std::ptrdiff_t>(parameters));
  at += static_cast<std::ptrdiff_t>(parameters);
  copies_.assign(at, at + static_cast<std::ptrdiff_t>(parameters));
  seconds_per_byte_ = all[all.size() - 2];
  return room == schedule::kUnlimited ? room : static_cast<std::int64_t>(-all.back());
}

schedule::Costs Measure::costs(const schedule::Trace& trace, const schedule::Schedule& schedule,
                               const std::vector<schedule::ParameterSize>& sizes) const {
  schedule::Costs costs = agreed_;
  costs.shared_link = parallel_.is_asynchronous();  // a rank's gathers and reductions share the links of GPUs
  costs.lanes = shard::lanes_of_hops(parallel_.mesh, parallel_.domains);
  set_way_costs(
      trace, sizes, schedule,
      [this](int, mesh::Transfer, std::int64_t bytes) { return static_cast<double>(bytes) * seconds_per_byte_; },
      costs);
  // The time of each gather was measured, including all its hops.
  costs.seconds[mesh::Transfer::gather] = by_unit(schedule.gather_units, gathers_);
  costs.seconds[mesh::Transfer::gather_compute].clear();
  costs.copy_seconds = by_unit(schedule.gather_units, copies_);
  return costs;
}

}  // namespace tessera::runtime
