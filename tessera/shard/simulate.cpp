#include "tessera/shard/simulate.h"

#include <algorithm>

namespace tessera::shard {
namespace {

double value(const std::vector<double>& values, int index) {
  const auto at = static_cast<std::size_t>(index);
  return at < values.size() ? values[at] : 0;
}

// The four lanes through some steps one after another.
class Player {
 public:
  Player(const Schedule& schedule, const Costs& costs)
      : schedule_(schedule), costs_(costs), arrived_(schedule.residencies.size()), summed_(schedule.reductions.size()) {
    const auto positions = static_cast<std::size_t>(schedule.events + 1);
    passed_.resize(positions);
    gathers_.resize(positions);
    reductions_.resize(positions);
    finishes_.resize(positions);
    arrivals_.resize(static_cast<std::size_t>(schedule.body));
    for (int i = 0; i < static_cast<int>(schedule.residencies.size()); ++i) {
      gathers_[slot(residency(i).issue)].push_back(i);
      arrivals_[static_cast<std::size_t>(residency(i).wait)].push_back(i);
    }
    for (int i = 0; i < static_cast<int>(schedule.reductions.size()); ++i) {
      reductions_[slot(reduction(i).issue)].push_back(i);
      finishes_[slot(reduction(i).finish)].push_back(i);
    }
  }

  // One step: the body, then the publishes. The last call's result is of the steady state.
  Prediction step(bool is_first) {
    Prediction prediction;
    const double begin = compute_;
    prediction.waits.assign(static_cast<std::size_t>(schedule_.events), 0.0);
    prediction.spans = std::move(ahead_);
    ahead_.clear();
    for (Span& span : prediction.spans) {
      span.begin -= begin;
      span.end -= begin;
    }
    begin_ = begin;
    if (is_first || schedule_.publishes() == 0) issue_all_before_begin(prediction);
    for (int index = 0; index < schedule_.body; ++index) event(index, prediction);
    // What the last microbatch does not reduce might have come there after all: its sums over replicas are last.
    for (int i = 0; i < static_cast<int>(schedule_.reductions.size()); ++i)
      if (reduction(i).replicas && reduction(i).microbatch + 1 < schedule_.microbatches)
        sum_replicas(i, prediction.spans);
    for (const double summed : summed_replicas_) wait(summed, prediction.reduce_exposed_seconds, nullptr);
    summed_replicas_.clear();
    for (int index = schedule_.body; index < schedule_.events; ++index) event(index, prediction);
    prediction.step_seconds = compute_ - begin;
    prediction.exposed_seconds =
        prediction.gather_exposed_seconds + prediction.reduce_exposed_seconds + prediction.comm_exposed_seconds;
    return prediction;
  }

 private:
  const Residency& residency(int i) const { return schedule_.residencies[static_cast<std::size_t>(i)]; }
  const Reduction& reduction(int i) const { return schedule_.reductions[static_cast<std::size_t>(i)]; }
  // Positions from -publishes to body - 1, and -1 where there are no publishes.
  std::size_t slot(int position) const {
    return static_cast<std::size_t>(position < 0 ? position + schedule_.events + 1 : position);
  }

  void issue_all_before_begin(Prediction& prediction) {
    for (std::size_t at = static_cast<std::size_t>(schedule_.body); at < gathers_.size(); ++at)
      for (const int i : gathers_[at]) gather(i, compute_, prediction.spans);
  }

  void wait(double until, double& exposed, double* waited) {
    if (until <= compute_) return;
    exposed += until - compute_;
    if (waited) *waited += until - compute_;
    compute_ = until;
  }

  void event(int index, Prediction& prediction) {
    const double segment = value(costs_.segment_seconds, index), comm = value(costs_.comm_seconds, index);
    double& waited = prediction.waits[static_cast<std::size_t>(index)];
    if (segment > 0)
      prediction.spans.push_back({LaneKind::compute, index, compute_ - begin_, compute_ + segment - begin_});
    compute_ += segment;
    prediction.compute_seconds += segment;
    const int position = schedule_.position_of(index);
    if (position >= 0)
      for (const int i : arrivals_[static_cast<std::size_t>(index)])
        wait(arrived_[static_cast<std::size_t>(i)], prediction.gather_exposed_seconds, &waited);
    const std::size_t at = slot(position);
    passed_[at] = compute_;
    for (const int i : reductions_[at]) reduce(i, prediction.spans);
    for (const int i : gathers_[at])
      gather(i, passed_[slot(residency(i).free)], position < 0 ? ahead_ : prediction.spans);
    for (const int i : finishes_[at])
      wait(summed_[static_cast<std::size_t>(i)], prediction.reduce_exposed_seconds, &waited);
    // It is issued at its event; the program waits for it after all that happens there.
    wait(compute_ + comm, prediction.comm_exposed_seconds, &waited);
  }

  void gather(int i, double free, std::vector<Span>& spans) {
    const bool is_ahead = &spans == &ahead_;
    const double begin = std::max({gather_, free, compute_});
    gather_ = begin + value(costs_.gather_seconds, residency(i).unit);
    arrived_[static_cast<std::size_t>(i)] = gather_;
    const double origin = is_ahead ? 0 : begin_;
    spans.push_back({LaneKind::gather, i, begin - origin, gather_ - origin});
  }

  void reduce(int i, std::vector<Span>& spans) {
    const double begin = std::max(reduce_, compute_);
    reduce_ = begin + value(costs_.reduce_seconds, reduction(i).unit);
    summed_[static_cast<std::size_t>(i)] = reduce_;
    spans.push_back({LaneKind::reduce, i, begin - begin_, reduce_ - begin_});
    if (reduction(i).replicas && reduction(i).microbatch + 1 == schedule_.microbatches) sum_replicas(i, spans);
  }

  void sum_replicas(int i, std::vector<Span>& spans) {
    const double replica = value(costs_.replica_seconds, reduction(i).unit);
    if (replica == 0) return;
    const double from = std::max({dp_, summed_[static_cast<std::size_t>(i)], compute_});
    dp_ = from + replica;
    summed_replicas_.push_back(dp_);
    spans.push_back({LaneKind::dp, i, from - begin_, dp_ - begin_});
  }

  const Schedule& schedule_;
  const Costs& costs_;
  std::vector<std::vector<int>> gathers_, reductions_, finishes_;  // by slot
  std::vector<std::vector<int>> arrivals_;                         // by event
  std::vector<double> passed_;                                     // by slot: when compute last was there
  std::vector<double> arrived_, summed_;
  std::vector<double> summed_replicas_;
  std::vector<Span> ahead_;  // for the next step; absolute times
  double compute_ = 0, gather_ = 0, reduce_ = 0, dp_ = 0, begin_ = 0;
};

}  // namespace

Prediction simulate(const Trace& trace, const Schedule& schedule, const Costs& costs) {
  (void)trace;
  Player player(schedule, costs);
  player.step(true);
  player.step(false);
  return player.step(false);
}

Prediction simulate_on_demand(const Trace& trace, const Schedule& schedule, const Costs& costs) {
  std::vector<int> unit_of, users(schedule.gather_units.size(), 0);
  for (std::size_t unit = 0; unit < schedule.gather_units.size(); ++unit)
    for (const ParameterId member : schedule.gather_units[unit]) {
      unit_of.resize(std::max(unit_of.size(), static_cast<std::size_t>(member) + 1), -1);
      unit_of[static_cast<std::size_t>(member)] = static_cast<int>(unit);
    }
  Prediction prediction;
  for (int index = 0; index < schedule.events; ++index) {
    const Event& event = trace[static_cast<std::size_t>(index)];
    prediction.compute_seconds += value(costs.segment_seconds, index);
    prediction.comm_exposed_seconds += value(costs.comm_seconds, index);
    const auto parameter = static_cast<std::size_t>(event.parameter);
    const int unit = event.parameter >= 0 && parameter < unit_of.size() ? unit_of[parameter] : -1;
    if (unit < 0) continue;
    int& holds = users[static_cast<std::size_t>(unit)];
    if (event.kind == EventKind::consume && holds++ == 0)
      prediction.gather_exposed_seconds += value(costs.gather_seconds, unit);
    if (event.kind == EventKind::release) --holds;
  }
  for (const Reduction& reduction : schedule.reductions) {
    prediction.reduce_exposed_seconds += value(costs.reduce_seconds, reduction.unit);
    if (reduction.replicas) prediction.reduce_exposed_seconds += value(costs.replica_seconds, reduction.unit);
  }
  prediction.exposed_seconds =
      prediction.gather_exposed_seconds + prediction.reduce_exposed_seconds + prediction.comm_exposed_seconds;
  prediction.step_seconds = prediction.compute_seconds + prediction.exposed_seconds;
  return prediction;
}

std::string_view name_of(LaneKind lane) {
  switch (lane) {
    case LaneKind::compute:
      return "compute";
    case LaneKind::gather:
      return "gather";
    case LaneKind::reduce:
      return "reduce";
    case LaneKind::dp:
      return "dp";
  }
  return "?";
}

}  // namespace tessera::shard
