#include "tessera/schedule/way_costs.h"

namespace tessera::schedule {
namespace {

using mesh::Transfer;

Way way_of_unit(const Unit& unit, const std::vector<ParameterSize>& sizes, Way ParameterSize::*way) {
  Way sum;
  for (const ParameterId id : unit) add_hops(sum, sizes[static_cast<std::size_t>(id)].*way);
  return sum;
}

double seconds_over(int domain, const Way& way, Transfer transfer, const HopSeconds& seconds) {
  return has_hop(way, transfer) ? seconds(domain, transfer, bytes_over(way, transfer)) : 0;
}

}  // namespace

void set_way_costs(const Trace& trace, const std::vector<ParameterSize>& sizes, const Schedule& schedule,
                   const HopSeconds& seconds, Costs& costs) {
  costs.seconds = {};
  std::vector<double>& publishes = costs.seconds[Transfer::publish];
  publishes.resize(trace.size());
  for (std::size_t i = 0; i < trace.size(); ++i)
    if (trace[i].kind == EventKind::publish) {
      const ParameterSize& size = sizes[static_cast<std::size_t>(trace[i].parameter)];
      publishes[i] = seconds_over(size.domain, size.publish, Transfer::publish, seconds);
    }
  for (std::size_t number = 0; number < schedule.gather_units.size(); ++number) {
    const Way way = way_of_unit(schedule.gather_units[number], sizes, &ParameterSize::gather);
    const int domain = schedule.gather_domains[number];
    for (const Transfer hop : {Transfer::gather, Transfer::gather_compute})
      costs.seconds[hop].push_back(seconds_over(domain, way, hop, seconds));
  }
  for (std::size_t number = 0; number < schedule.reduce_units.size(); ++number) {
    const Unit& unit = schedule.reduce_units[number];
    const Way way = way_of_unit(unit, sizes, &ParameterSize::reduce);
    const int domain = schedule.reduce_domains[number];
    for (const Transfer hop : {Transfer::reduce_compute, Transfer::reduce})
      costs.seconds[hop].push_back(seconds_over(domain, way, hop, seconds));
    costs.seconds[Transfer::replicas].push_back(
        seconds_over(domain, way_of_unit(unit, sizes, &ParameterSize::replicas), Transfer::replicas, seconds));
  }
}

}  // namespace tessera::schedule
