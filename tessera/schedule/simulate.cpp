#include "tessera/schedule/simulate.h"

#include <algorithm>

#include "tessera/schedule/collectives_in_time.h"

namespace tessera::schedule {
namespace {

using mesh::Transfer;

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
    copies_.resize(static_cast<std::size_t>(schedule.body));
    for (int i = 0; i < static_cast<int>(schedule.copies.size()); ++i)
      copies_[static_cast<std::size_t>(schedule.copies[static_cast<std::size_t>(i)].make)].push_back(i);
    for (int i = 0; i < static_cast<int>(schedule.residencies.size()); ++i) {
      gathers_[slot(residency(i).issue)].push_back(i);
      arrivals_[static_cast<std::size_t>(residency(i).wait)].push_back(i);
    }
    for (const Event& event : trace)
      published_.resize(std::max(published_.size(), static_cast<std::size_t>(event.parameter + 1)));
    moves_.resize(published_.size());
    for (int unit = 0; unit < static_cast<int>(schedule.gather_units.size()); ++unit)
      for (const ParameterId id : schedule.gather_units[static_cast<std::size_t>(unit)])
        moves_[static_cast<std::size_t>(id)] = !schedule.stays_in_place(unit);
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

  const Residency& residency(int i) const { return schedule_.residencies[static_cast<std::size_t>(i)]; }
  const Reduction& reduction(int i) const { return schedule_.reductions[static_cast<std::size_t>(i)]; }
  int domain_of(const Reduction& reduction) const {
    return schedule_.reduce_domains[static_cast<std::size_t>(reduction.unit)];
  }
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
    if (segment > 0) prediction.spans.push_back({std::nullopt, index, compute_ - begin_, compute_ + segment - begin_});
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
    if (position >= 0)
      for (const int i : copies_[static_cast<std::size_t>(index)]) make_copy(i, prediction);
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

  void make_copy(int i, Prediction& prediction) {
    const double seconds = value(costs_.copy_seconds, schedule_.copies[static_cast<std::size_t>(i)].unit);
    if (seconds == 0) return;
    prediction.spans.push_back({std::nullopt, i, compute_ - begin_, compute_ + seconds - begin_, /*is_copy=*/true});
    compute_ += seconds;
    prediction.compute_seconds += seconds;
  }

  // A hop of a unit or of a published weight.
  struct Ready {
    Transfer hop;
    int domain, index;   // `index` as in Span
    double at, seconds;  // the time from which the hop may run, and its duration
  };

  // Runs a hop on its lane. Returns its end.
  double run(const Ready& ready, std::vector<Span>& spans) {
    double& free = free_[static_cast<std::size_t>(lanes_[static_cast<std::size_t>(ready.domain)][ready.hop])];
    const double begin = take_link(std::max(free, ready.at), ready.seconds);
    free = begin + ready.seconds;
    const double origin = &spans == &ahead_ ? 0 : begin_;
    spans.push_back({ready.hop, ready.index, begin - origin, free - origin});
    return free;
  }
  double seconds(Transfer hop, int index) const { return value(costs_.seconds[hop], index); }

  void gather(int i, double free, std::vector<Span>& spans) {
    const int unit = residency(i).unit, domain = schedule_.gather_domains[static_cast<std::size_t>(unit)];
    double begin = std::max(free, compute_);
    for (const ParameterId id : schedule_.gather_units[static_cast<std::size_t>(unit)])
      begin = std::max(begin, published_[static_cast<std::size_t>(id)]);
    double& arrived = arrived_[static_cast<std::size_t>(i)];
    arrived = run({Transfer::gather, domain, i, begin, seconds(Transfer::gather, unit)}, spans);
    if (const double over_compute = seconds(Transfer::gather_compute, unit); over_compute > 0)
      arrived = run({Transfer::gather_compute, domain, i, arrived, over_compute}, spans);
  }

  void publish(int index, std::vector<Span>& spans) {
    const auto parameter = static_cast<std::size_t>(trace_[static_cast<std::size_t>(index)].parameter);
    double& published = published_[parameter];
    published = compute_;
    if (const double exchange = seconds(Transfer::publish, index); exchange > 0)
      published = run({Transfer::publish, domain_of_[parameter], index, compute_, exchange}, spans);
  }

  void reduce(int i, std::vector<Span>& spans) {
    const int unit = reduction(i).unit, domain = domain_of(reduction(i));
    double begin = compute_;
    for (const int earlier : reduction(i).scratch_waits)
      begin = std::max(begin, summed_[static_cast<std::size_t>(earlier)]);
    if (const double over_compute = seconds(Transfer::reduce_compute, unit); over_compute > 0)
      begin = std::max(begin, run({Transfer::reduce_compute, domain, i, compute_, over_compute}, spans));
    summed_[static_cast<std::size_t>(i)] =
        run({Transfer::reduce, domain, i, begin, seconds(Transfer::reduce, unit)}, spans);
    if (reduction(i).replicas && reduction(i).microbatch + 1 == schedule_.microbatches) sum_replicas(i, spans);
  }

  void sum_replicas(int i, std::vector<Span>& spans) {
    const double sum = seconds(Transfer::replicas, reduction(i).unit);
    if (sum == 0) return;
    const double ready = std::max(summed_[static_cast<std::size_t>(i)], compute_);
    summed_replicas_.push_back(run({Transfer::replicas, domain_of(reduction(i)), i, ready, sum}, spans));
  }

  const Trace& trace_;
  const Schedule& schedule_;
  const Costs& costs_;
  CollectivesInTime collectives_;
  std::vector<bool> moves_;        // index: parameter; whether the parameter is gathered
  std::vector<double> published_;  // index: parameter; time at which its newest version is written
  std::vector<std::vector<int>> gathers_, reductions_, finishes_;  // index: slot
  std::vector<std::vector<int>> arrivals_, copies_;                // index: event
  std::vector<double> passed_;  // index: slot; time at which compute last passed the slot
  std::vector<double> arrived_, summed_;
  std::vector<double> summed_replicas_;
  std::vector<Span> ahead_;     // spans of the next step's prefetches, in absolute times
  std::vector<Lanes> lanes_;    // index: domain
  std::vector<double> free_;    // index: lane; time from which the lane is free
  std::vector<int> domain_of_;  // index: parameter
  double compute_ = 0, begin_ = 0, link_ = 0;
};

}  // namespace

std::vector<Lanes> lanes_of(const Schedule& schedule, const Costs& costs) {
  std::vector<Lanes> lanes = costs.lanes;
  std::size_t domains = 1;
  for (const std::vector<int>* units : {&schedule.gather_domains, &schedule.reduce_domains})
    for (const int domain : *units) domains = std::max(domains, static_cast<std::size_t>(domain) + 1);
  while (lanes.size() < domains) {
    auto next = static_cast<int>(number_of_lanes(lanes));
    Lanes& own = lanes.emplace_back();
    for (const Transfer hop : kHops) own[hop] = hop == Transfer::publish ? own[Transfer::replicas] : next++;
  }
  return lanes;
}

std::size_t number_of_lanes(const std::vector<Lanes>& lanes) {
  int most = -1;
  for (const Lanes& it : lanes) most = std::max(most, std::ranges::max(it.values));
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
        users_(schedule.gather_units.size(), 0),
        copy_users_(schedule.gather_units.size(), 0) {
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
      if (reduction.replicas)
        spend(value(costs_.seconds[Transfer::replicas], reduction.unit), prediction.reduce_exposed_seconds);
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
    if (event.kind == EventKind::consume) consume(event, prediction);
    if (event.kind == EventKind::release)
      if (const int unit = unit_of(event); unit >= 0) {
        --users_[static_cast<std::size_t>(unit)];
        if (event.pass == Pass::backward) --copy_users_[static_cast<std::size_t>(unit)];
      }
    if (event.kind == EventKind::publish) {
      const double seconds = value(costs_.seconds[Transfer::publish], index);
      if (seconds > 0) replicas_ = std::max(replicas_, now_) + seconds;
      published_[static_cast<std::size_t>(event.parameter)] = seconds > 0 ? replicas_ : now_;
    }
    if (reads_rows(event))
      spend(std::max(0.0, published_[static_cast<std::size_t>(event.parameter)] - now_),
            prediction.gather_exposed_seconds);
    spend(collectives_.happened(index, now_) - now_, prediction.comm_exposed_seconds);
  }

  void consume(const Event& event, Prediction& prediction) {
    const int unit = unit_of(event);
    double& exposed = prediction.gather_exposed_seconds;
    if (unit < 0 || users_[static_cast<std::size_t>(unit)]++ == 0) {
      spend(std::max(0.0, published_[static_cast<std::size_t>(event.parameter)] - now_), exposed);
      if (unit >= 0)
        spend(value(costs_.seconds[Transfer::gather], unit) + value(costs_.seconds[Transfer::gather_compute], unit),
              exposed);
    }
    if (unit < 0 || event.pass != Pass::backward || copy_users_[static_cast<std::size_t>(unit)]++ > 0) return;
    const double seconds = value(costs_.copy_seconds, unit);
    now_ += seconds;
    prediction.compute_seconds += seconds;
  }

  void reduce(int microbatch, Prediction& prediction) {
    for (const Reduction* reduction : reductions_[static_cast<std::size_t>(microbatch)])
      spend(value(costs_.seconds[Transfer::reduce_compute], reduction->unit) +
                value(costs_.seconds[Transfer::reduce], reduction->unit),
            prediction.reduce_exposed_seconds);
  }

  int unit_of(const Event& event) const { return unit_of_[static_cast<std::size_t>(event.parameter)]; }

  const Trace& trace_;
  const Schedule& schedule_;
  const Costs& costs_;
  CollectivesInTime collectives_;
  // Index of unit_of_: parameter. Index of the others: unit; value: uses that are not released yet. For copy_users_,
  // only uses of backward passes count.
  std::vector<int> unit_of_, users_, copy_users_;
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
