#include "tessera/bench/schedule_costs.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "tessera/comm/operation.h"
#include "tessera/predict/costs.h"
#include "tessera/schedule/collectives_in_time.h"
#include "tessera/schedule/way_costs.h"

namespace tessera::bench {
namespace {

using mesh::Transfer;
using schedule::Event;
using schedule::EventKind;
using schedule::ParameterId;
using schedule::ParameterSize;

// Returns the time of a comparison, in which every rank of a group sends one number to all others.
double compare_seconds(const comm::Link& link, int ranks) {
  return ranks == 1 ? 0 : link.seconds(static_cast<std::int64_t>(sizeof(std::uint64_t)) * (ranks - 1));
}

// Returns the time of a collective of the program whose ranks have equal parts.
double collective_seconds(const comm::Link& link, int ranks, const Event& event) {
  if (ranks == 1) return 0;
  if (schedule::is_piece_op(event.op)) return link.seconds(event.bytes);
  if (event.op == "all_gather") return link.seconds((ranks - 1) * event.bytes);
  if (event.op == "reduce_scatter") return link.seconds((ranks - 1) * event.bytes / ranks);
  return link.seconds(comm::all_reduce_received(event.bytes, ranks));
}

std::vector<int> unit_by_parameter(const std::vector<schedule::Unit>& units, std::size_t events) {
  std::vector<int> unit_of(events, -1);  // the number of events is larger than the number of parameters
  for (std::size_t unit = 0; unit < units.size(); ++unit)
    for (const ParameterId id : units[unit]) unit_of[static_cast<std::size_t>(id)] = static_cast<int>(unit);
  return unit_of;
}

}  // namespace

schedule::Costs exact_costs(const comm::Link& link, const nn::MeshDegrees& degrees, const schedule::Trace& trace,
                            const std::vector<ParameterSize>& sizes, const schedule::Schedule& schedule,
                            std::vector<double> segments, bool on_demand) {
  schedule::Costs costs{.segment_seconds = std::move(segments)};
  const shard::RankLayout layout = nn::rank_layout(degrees);
  costs.lanes = shard::lanes_of_hops(layout.mesh, layout.domains);
  // Index: domain; seconds in which the ranks that store a part compare their events, in a step on demand.
  std::vector<double> compare;
  for (const shard::Domain& domain : layout.domains)
    compare.push_back(on_demand ? compare_seconds(link, layout.mesh.size(domain.storage)) : 0);
  const double compare_all = std::accumulate(compare.begin(), compare.end(), 0.0);
  for (std::size_t i = 0; i < trace.size(); ++i) {
    const auto ranks = [&] { return predict::ranks_of_group(layout, trace[i].group); };
    costs.comm_seconds.push_back(trace[i].kind == EventKind::comm ? collective_seconds(link, ranks(), trace[i]) : 0);
    if (i > 0 && trace[i].microbatch != trace[i - 1].microbatch) costs.comm_seconds[i - 1] += compare_all;
  }
  costs.end_seconds = compare_seconds(link, static_cast<int>(degrees.places()));
  set_way_costs(
      trace, sizes, schedule, [&](int, Transfer, std::int64_t bytes) { return link.seconds(bytes); }, costs);
  std::vector<double>& gathers = costs.seconds[Transfer::gather];
  for (std::size_t unit = 0; unit < gathers.size(); ++unit)
    gathers[unit] += compare[static_cast<std::size_t>(schedule.gather_domains[unit])];
  return costs;
}

namespace {

// The lanes of the longest path: no arena limits it.
class FreeLanes {
 public:
  FreeLanes(const schedule::Schedule& schedule, const schedule::Costs& costs)
      : lanes_(lanes_of(schedule, costs)), free_(schedule::number_of_lanes(lanes_), 0.0) {
    const auto place = [&](const std::vector<schedule::Unit>& units, const std::vector<int>& domains) {
      for (std::size_t unit = 0; unit < units.size(); ++unit)
        for (const ParameterId id : units[unit]) {
          domain_of_.resize(std::max(domain_of_.size(), static_cast<std::size_t>(id) + 1), 0);
          domain_of_[static_cast<std::size_t>(id)] = domains[unit];
        }
    };
    place(schedule.gather_units, schedule.gather_domains);
    place(schedule.reduce_units, schedule.reduce_domains);
  }

  // Adds a transfer that starts at `begin`, or later when the lane of the parameter is free. Returns its end.
  double take(ParameterId id, Transfer hop, double begin, double seconds) {
    const auto at = static_cast<std::size_t>(id);
    const int domain = at < domain_of_.size() ? domain_of_[at] : 0;
    double& free = free_[static_cast<std::size_t>(lanes_[static_cast<std::size_t>(domain)][hop])];
    return free = std::max(free, begin) + seconds;
  }

 private:
  std::vector<schedule::Lanes> lanes_;  // index: domain
  std::vector<double> free_;            // index: lane; time from which the lane is free
  std::vector<int> domain_of_;          // index: parameter
};

}  // namespace

double longest_path(const schedule::Trace& trace, const schedule::Schedule& schedule, const schedule::Costs& costs) {
  const auto body = static_cast<std::size_t>(schedule.body);
  const std::vector<int> gathered = unit_by_parameter(schedule.gather_units, trace.size());
  std::vector<double> published(schedule.gather_units.size(), 0.0);
  std::vector<bool> arrived(schedule.gather_units.size(), false);
  std::vector<std::vector<const schedule::Reduction*>> produced(trace.size());
  for (const schedule::Reduction& reduction : schedule.reductions)
    produced[static_cast<std::size_t>(reduction.issue)].push_back(&reduction);

  schedule::CollectivesInTime collectives(costs, schedule.events);
  FreeLanes lanes(schedule, costs);
  double program = 0, transfers = 0, late = 0;  // transfers: the end of the last reduction or sum over replicas
  for (std::size_t i = body; i < trace.size(); ++i) {
    if (i > body) program += costs.segment_seconds[i];
    program = collectives.happened(static_cast<int>(i), program);
    const ParameterId id = trace[i].parameter;
    if (trace[i].kind != EventKind::publish) continue;
    double whole = program;
    if (costs.seconds[Transfer::publish][i] > 0)
      transfers =
          std::max(transfers, whole = lanes.take(id, Transfer::replicas, program, costs.seconds[Transfer::publish][i]));
    const int unit = gathered[static_cast<std::size_t>(id)];
    if (unit >= 0) published[static_cast<std::size_t>(unit)] = whole;
  }
  for (std::size_t i = 0; i < body; ++i) {
    program += costs.segment_seconds[i];
    const Event& event = trace[i];
    const int unit = event.kind == EventKind::consume ? gathered[static_cast<std::size_t>(event.parameter)] : -1;
    if (unit >= 0 && !schedule.stays_in_place(unit) && !arrived[static_cast<std::size_t>(unit)]) {
      const auto u = static_cast<std::size_t>(unit);
      arrived[u] = true;
      program = std::max(
          program, lanes.take(event.parameter, Transfer::gather, published[u], costs.seconds[Transfer::gather][u]));
    }
    for (const schedule::Reduction* reduction : produced[i]) {
      const auto u = static_cast<std::size_t>(reduction->unit);
      double end = lanes.take(event.parameter, Transfer::reduce, program, costs.seconds[Transfer::reduce][u]);
      if (reduction->replicas && reduction->microbatch + 1 == schedule.microbatches)
        end = lanes.take(event.parameter, Transfer::replicas, end, costs.seconds[Transfer::replicas][u]);
      else if (reduction->replicas)
        late += costs.seconds[Transfer::replicas][u];
      transfers = std::max(transfers, end);
    }
    program = collectives.happened(static_cast<int>(i), program);
  }
  program = std::max(program, transfers) + late + costs.end_seconds;
  return body < trace.size() ? program + costs.segment_seconds[body] : program;
}

}  // namespace tessera::bench
