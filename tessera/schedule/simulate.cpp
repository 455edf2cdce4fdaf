#include "tessera/schedule/simulate.h"

#include <algorithm>

#include "tessera/schedule/collectives_in_time.h"

namespace tessera::schedule {
namespace {

double value(const std::vector<double>& values, int index) {
  const auto at = static_cast<std::size_t>(index);
  return at < values.size() ? values[at] : 0;
}

// Simulates the lanes of consecutive steps.
class Player {
 public:
  Player(const Trace& trace, const Schedule& schedule, const Costs& costs)
      : trace_(trace),
        schedule_(schedule),
        costs_(costs),
        collectives_(costs, schedule.events),
        arrived_(schedule.residencies.size()),
        summed_(schedule.reductions.size()) {
    const auto positions = static_cast<std::size_t>(schedule.events) + 1;
    passed_.resize(positions);
    gathers_.resize(positions);
    reductions_.resize(positions);
    finishes_.resize(positions);
    arrivals_.resize(static_cast<std::size_t>(schedule.body));
    for (int i = 0; i < static_cast<int>(schedule.residencies.size()); ++i) {
      gathers_[slot(residency(i).issue)].push_back(i);
      arrivals_[static_cast<std::size_t>(residency(i).wait)].push_back(i);
    }
    for (const Event& event : trace)
      published_.resize(std::max(published_.size(), static_cast<std::size_t>(event.parameter + 1)));
    moves_.resize(published_.size());
    for (const Unit& unit : schedule.gather_units)
      for (const ParameterId id : unit) moves_[static_cast<std::size_t>(id)] = true;
    for (int i = 0; i < static_cast<int>(schedule.reductions.size()); ++i) {
      reductions_[slot(reduction(i).issue)].push_back(i);
      finishes_[slot(reduction(i).finish)].push_back(i);
    }
    place_domains();
  }

  // Simulates one step: first the body, then the events of the optimizer. After a few calls the times no longer change
  // (steady state).
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
    if (is_first || schedule_.optimizer_events() == 0) issue_all_before_begin(prediction);
    for (int index = 0; index < schedule_.body; ++index) event(index, prediction);
    // If the last microbatch does not reduce a unit, the unit's sum over replicas runs at the end of the body.
    for (int i = 0; i < static_cast<int>(schedule_.reductions.size()); ++i)
      if (reduction(i).replicas && reduction(i).microbatch + 1 < schedule_.microbatches)
        sum_replicas(i, prediction.spans);
    for (const double summed : summed_replicas_) wait(summed, prediction.reduce_exposed_seconds, nullptr);
    summed_replicas_.clear();
    wait(compute_ + costs_.end_seconds, prediction.comm_exposed_seconds, nullptr);
    for (int index = schedule_.body; index < schedule_.events; ++index) event(index, prediction);
    prediction.step_seconds = compute_ - begin;
    return prediction;
  }

 private:
  void place_domains() {
    domain_of_.resize(published_.size());
    const auto place = [&](const std::vector<Unit>& units, const std::vector<int>& domains) {
      for (std::size_t unit = 0; unit < units.size(); ++unit)
        for (const ParameterId id : units[unit]) domain_of_[static_cast<std::size_t>(id)] = domains[unit];
    };
    lanes_ = lanes_of(schedule_, costs_);
    free_.resize(number_of_lanes(lanes_));
    place(schedule_.gather_units, schedule_.gather_domains);
    place(schedule_.reduce_units, schedule_.reduce_domains);
  }
  const DomainLanes& lanes_of_unit(const std::vector<int>& domains, int unit) const {
    return lanes_[static_cast<std::size_t>(domains[static_cast<std::size_t>(unit)])];
  }
  double& free_at(int lane) { return free_[static_cast<std::size_t>(lane)]; }

  const Residency& residency(int i) const { return schedule_.residencies[static_cast<std::size_t>(i)]; }
  const Reduction& reduction(int i) const { return schedule_.reductions[static_cast<std::size_t>(i)]; }
  // Index into the vectors by slot. Positions go from -optimizer_events to body - 1. Position -1 exists without
  // optimizer events.
  std::size_t slot(int position) const {
    return static_cast<std::size_t>(position < 0 ? position + schedule_.events + 1 : position);
  }

  void issue_all_before_begin(Prediction& prediction) {
    for (std::size_t at = static_cast<std::size_t>(schedule_.body); at < gathers_.size(); ++at)
      for (const int i : gathers_[at]) gather(i, compute_, prediction.spans);
  }

  // Returns the time when a transfer that is ready at `begin` gets the link.
  double take_link(double begin, double seconds) {
    if (!costs_.shared_link) return begin;
    const double from = std::max(link_, begin);
    link_ = from + seconds;
    return from;
  }

  void wait(double until, double& exposed, double* waited) {
    if (until <= compute_) return;
    exposed += until - compute_;
    if (waited) *waited += until - compute_;
    compute_ = until;
  }

  void event(int index, Prediction& prediction) {
    const double segment = value(costs_.segment_seconds, index);
    double& waited = prediction.waits[static_cast<std::size_t>(index)];
    if (segment > 0)
      prediction.spans.push_back({Activity::compute, index, compute_ - begin_, compute_ + segment - begin_});
    compute_ += segment;
    prediction.compute_seconds += segment;
    const int position = schedule_.position_of(index);
    if (position >= 0)
      for (const int i : arrivals_[static_cast<std::size_t>(index)])
        wait(arrived_[static_cast<std::size_t>(i)], prediction.gather_exposed_seconds, &waited);
    const Event& event = trace_[static_cast<std::size_t>(index)];
    if (event.kind == EventKind::publish) publish(index, prediction.spans);
    if (reads_rows(event) || (event.kind == EventKind::consume && !moves_[static_cast<std::size_t>(event.parameter)]))
      wait(published_[static_cast<std::size_t>(event.parameter)], prediction.gather_exposed_seconds, &waited);
    const std::size_t at = slot(position);
    passed_[at] = compute_;
    for (const int i : reductions_[at]) reduce(i, prediction.spans);
    for (const int i : gathers_[at])
      gather(i, passed_[slot(residency(i).free)], position < 0 ? ahead_ : prediction.spans);
    for (const int i : finishes_[at])
      wait(summed_[static_cast<std::size_t>(i)], prediction.reduce_exposed_seconds, &waited);
    // The program issues a collective at its event. At an event, compute first does all other work and then waits for
    // the collectives that the program needs.
    wait(collectives_.happened(index, compute_), prediction.comm_exposed_seconds, &waited);
  }

  void gather(int i, double free, std::vector<Span>& spans) {
    const double origin = &spans == &ahead_ ? 0 : begin_;
    const int unit = residency(i).unit;
    const DomainLanes& lanes = lanes_of_unit(schedule_.gather_domains, unit);
    double begin = std::max({free_at(lanes.gather), free, compute_});
    for (const ParameterId id : schedule_.gather_units[static_cast<std::size_t>(unit)])
      begin = std::max(begin, published_[static_cast<std::size_t>(id)]);
    begin = take_link(begin, value(costs_.gather_seconds, unit));
    const double gathered = free_at(lanes.gather) = begin + value(costs_.gather_seconds, unit);
    arrived_[static_cast<std::size_t>(i)] = gathered;
    spans.push_back({Activity::gather, i, begin - origin, gathered - origin});
    const double over_compute = value(costs_.gather_compute_seconds, unit);
    if (over_compute == 0) return;
    const double from = take_link(std::max(free_at(lanes.gather_compute), gathered), over_compute);
    const double arrived = free_at(lanes.gather_compute) = from + over_compute;
    arrived_[static_cast<std::size_t>(i)] = arrived;
    spans.push_back({Activity::gather_compute, i, from - origin, arrived - origin});
  }

  void publish(int index, std::vector<Span>& spans) {
    const auto parameter = static_cast<std::size_t>(trace_[static_cast<std::size_t>(index)].parameter);
    double& published = published_[parameter];
    double& replicas = free_at(lanes_[static_cast<std::size_t>(domain_of_[parameter])].replicas);
    published = compute_;
    const double seconds = value(costs_.publish_seconds, index);
    if (seconds == 0) return;
    const double from = take_link(std::max(replicas, compute_), seconds);
    published = replicas = from + seconds;
    spans.push_back({Activity::publish, index, from - begin_, replicas - begin_});
  }

  void reduce(int i, std::vector<Span>& spans) {
    const double over_compute = value(costs_.reduce_compute_seconds, reduction(i).unit);
    const DomainLanes& lanes = lanes_of_unit(schedule_.reduce_domains, reduction(i).unit);
    double begin = std::max(free_at(lanes.reduce), compute_);
    for (const int earlier : reduction(i).scratch_waits)
      begin = std::max(begin, summed_[static_cast<std::size_t>(earlier)]);
    if (over_compute > 0) {
      const double from = take_link(std::max(free_at(lanes.reduce_compute), compute_), over_compute);
      const double added = free_at(lanes.reduce_compute) = from + over_compute;
      spans.push_back({Activity::reduce_compute, i, from - begin_, added - begin_});
      begin = std::max(begin, added);
    }
    begin = take_link(begin, value(costs_.reduce_seconds, reduction(i).unit));
    const double summed = free_at(lanes.reduce) = begin + value(costs_.reduce_seconds, reduction(i).unit);
    summed_[static_cast<std::size_t>(i)] = summed;
    spans.push_back({Activity::reduce, i, begin - begin_, summed - begin_});
    if (reduction(i).replicas && reduction(i).microbatch + 1 == schedule_.microbatches) sum_replicas(i, spans);
  }

  void sum_replicas(int i, std::vector<Span>& spans) {
    const double replica = value(costs_.replica_seconds, reduction(i).unit);
    if (replica == 0) return;
    double& replicas = free_at(lanes_of_unit(schedule_.reduce_domains, reduction(i).unit).replicas);
    const double from = take_link(std::max({replicas, summed_[static_cast<std::size_t>(i)], compute_}), replica);
    replicas = from + replica;
    summed_replicas_.push_back(replicas);
    spans.push_back({Activity::replicas, i, from - begin_, replicas - begin_});
  }

  const Trace& trace_;
  const Schedule& schedule_;
  const Costs& costs_;
  CollectivesInTime collectives_;
  std::vector<bool> moves_;        // index: parameter; whether the parameter is gathered
  std::vector<double> published_;  // index: parameter; time at which its newest version is written
  std::vector<std::vector<int>> gathers_, reductions_, finishes_;  // index: slot
  std::vector<std::vector<int>> arrivals_;                         // index: event
  std::vector<double> passed_;  // index: slot; time at which compute last passed the slot
  std::vector<double> arrived_, summed_;
  std::vector<double> summed_replicas_;
  std::vector<Span> ahead_;         // spans of the next step's prefetches, in absolute times
  std::vector<DomainLanes> lanes_;  // index: domain
  std::vector<double> free_;        // index: lane; time from which the lane is free
  std::vector<int> domain_of_;      // index: parameter
  double compute_ = 0, begin_ = 0, link_ = 0;
};

}  // namespace

std::vector<DomainLanes> lanes_of(const Schedule& schedule, const Costs& costs) {
  std::vector<DomainLanes> lanes = costs.lanes;
  std::size_t domains = 1;
  for (const std::vector<int>* units : {&schedule.gather_domains, &schedule.reduce_domains})
    for (const int domain : *units) domains = std::max(domains, static_cast<std::size_t>(domain) + 1);
  while (lanes.size() < domains) {
    const auto next = static_cast<int>(number_of_lanes(lanes));
    lanes.push_back({next, next + 1, next + 2, next + 3, next + 4});
  }
  return lanes;
}

std::size_t number_of_lanes(const std::vector<DomainLanes>& lanes) {
  int most = -1;
  for (const DomainLanes& it : lanes)
    most = std::max({most, it.gather, it.gather_compute, it.reduce_compute, it.reduce, it.replicas});
  return static_cast<std::size_t>(most + 1);
}

Prediction simulate(const Trace& trace, const Schedule& schedule, const Costs& costs) {
  Player player(trace, schedule, costs);
  player.step(true);
  player.step(false);
  return player.step(false);
}

namespace {

// Runs all work in program order. Only exchanges of new weights overlap with compute.
class OnDemandPlayer {
 public:
  OnDemandPlayer(const Trace& trace, const Schedule& schedule, const Costs& costs)
      : trace_(trace),
        schedule_(schedule),
        costs_(costs),
        collectives_(costs, schedule.events),
        users_(schedule.gather_units.size(), 0) {
    for (const Event& event : trace)
      unit_of_.resize(std::max(unit_of_.size(), static_cast<std::size_t>(event.parameter + 1)), -1);
    for (std::size_t unit = 0; unit < schedule.gather_units.size(); ++unit)
      for (const ParameterId member : schedule.gather_units[unit])
        unit_of_[static_cast<std::size_t>(member)] = static_cast<int>(unit);
    published_.resize(unit_of_.size());
    reductions_.resize(static_cast<std::size_t>(schedule.microbatches));
    for (const Reduction& reduction : schedule.reductions)
      reductions_[static_cast<std::size_t>(reduction.microbatch)].push_back(&reduction);
  }

  Prediction step() {
    Prediction prediction;
    const double begin = now_;
    for (int index = 0; index < schedule_.body; ++index) {
      event(index, prediction);
      const int microbatch = trace_[static_cast<std::size_t>(index)].microbatch;
      const bool ends =
          index + 1 == schedule_.body || trace_[static_cast<std::size_t>(index) + 1].microbatch != microbatch;
      if (ends && microbatch >= 0) reduce(microbatch, prediction);
    }
    for (const Reduction& reduction : schedule_.reductions)
      if (reduction.replicas) spend(value(costs_.replica_seconds, reduction.unit), prediction.reduce_exposed_seconds);
    spend(costs_.end_seconds, prediction.comm_exposed_seconds);
    for (int index = schedule_.body; index < schedule_.events; ++index) event(index, prediction);
    prediction.step_seconds = now_ - begin;
    return prediction;
  }

 private:
  void spend(double seconds, double& exposed) {
    now_ += seconds;
    exposed += seconds;
  }

  void event(int index, Prediction& prediction) {
    const Event& event = trace_[static_cast<std::size_t>(index)];
    const double segment = value(costs_.segment_seconds, index);
    now_ += segment;
    prediction.compute_seconds += segment;
    if (event.kind == EventKind::consume) consume(event, prediction.gather_exposed_seconds);
    if (event.kind == EventKind::release)
      if (const int unit = unit_of(event); unit >= 0) --users_[static_cast<std::size_t>(unit)];
    if (event.kind == EventKind::publish) {
      const double seconds = value(costs_.publish_seconds, index);
      if (seconds > 0) replicas_ = std::max(replicas_, now_) + seconds;
      published_[static_cast<std::size_t>(event.parameter)] = seconds > 0 ? replicas_ : now_;
    }
    if (reads_rows(event))
      spend(std::max(0.0, published_[static_cast<std::size_t>(event.parameter)] - now_),
            prediction.gather_exposed_seconds);
    spend(collectives_.happened(index, now_) - now_, prediction.comm_exposed_seconds);
  }

  void consume(const Event& event, double& exposed) {
    const int unit = unit_of(event);
    if (unit >= 0 && users_[static_cast<std::size_t>(unit)]++ > 0) return;
    spend(std::max(0.0, published_[static_cast<std::size_t>(event.parameter)] - now_), exposed);
    if (unit >= 0) spend(value(costs_.gather_seconds, unit) + value(costs_.gather_compute_seconds, unit), exposed);
  }

  void reduce(int microbatch, Prediction& prediction) {
    for (const Reduction* reduction : reductions_[static_cast<std::size_t>(microbatch)])
      spend(value(costs_.reduce_compute_seconds, reduction->unit) + value(costs_.reduce_seconds, reduction->unit),
            prediction.reduce_exposed_seconds);
  }

  int unit_of(const Event& event) const { return unit_of_[static_cast<std::size_t>(event.parameter)]; }

  const Trace& trace_;
  const Schedule& schedule_;
  const Costs& costs_;
  CollectivesInTime collectives_;
  // Index of unit_of_: parameter; index of users_: unit; value: uses that are not released yet.
  std::vector<int> unit_of_, users_;
  std::vector<double> published_;                          // index: parameter
  std::vector<std::vector<const Reduction*>> reductions_;  // index: microbatch
  double now_ = 0, replicas_ = 0;
};

}  // namespace

Prediction simulate_on_demand(const Trace& trace, const Schedule& schedule, const Costs& costs) {
  OnDemandPlayer player(trace, schedule, costs);
  player.step();
  return player.step();
}

}  // namespace tessera::schedule
