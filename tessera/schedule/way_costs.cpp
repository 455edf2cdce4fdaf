#include "tessera/schedule/way_costs.h"

namespace tessera::schedule {
namespace {

Way way_of_unit(const Unit& unit, const std::vector<ParameterSize>& sizes, Way ParameterSize::*way) {
  Way sum;
  for (const ParameterId id : unit) add_hops(sum, sizes[static_cast<std::size_t>(id)].*way);
  return sum;
}

double seconds_over(int domain, const Way& way, Activity activity, const HopSeconds& seconds) {
  return has_hop(way, activity) ? seconds(domain, activity, bytes_over(way, activity)) : 0;
}

}  // namespace

void set_way_costs(const Trace& trace, const std::vector<ParameterSize>& sizes, const Schedule& schedule,
                   const HopSeconds& seconds, Costs& costs) {
  costs.publish_seconds.assign(trace.size(), 0.0);
  for (std::size_t i = 0; i < trace.size(); ++i)
    if (trace[i].kind == EventKind::publish) {
      const ParameterSize& size = sizes[static_cast<std::size_t>(trace[i].parameter)];
      costs.publish_seconds[i] = seconds_over(size.domain, size.publish, Activity::publish, seconds);
    }
  costs.gather_seconds.clear(), costs.gather_compute_seconds.clear();
  for (std::size_t number = 0; number < schedule.gather_units.size(); ++number) {
    const Way way = way_of_unit(schedule.gather_units[number], sizes, &ParameterSize::gather);
    const int domain = schedule.gather_domains[number];
    costs.gather_seconds.push_back(seconds_over(domain, way, Activity::gather, seconds));
    costs.gather_compute_seconds.push_back(seconds_over(domain, way, Activity::gather_compute, seconds));
  }
  costs.reduce_compute_seconds.clear(), costs.reduce_seconds.clear(), costs.replica_seconds.clear();
  for (std::size_t number = 0; number < schedule.reduce_units.size(); ++number) {
    const Unit& unit = schedule.reduce_units[number];
    const Way way = way_of_unit(unit, sizes, &ParameterSize::reduce);
    const int domain = schedule.reduce_domains[number];
    costs.reduce_seconds.push_back(seconds_over(domain, way, Activity::reduce, seconds));
    double over_compute = 0, replicas = 0;
    for (const ParameterId id : unit) {
      const ParameterSize& size = sizes[static_cast<std::size_t>(id)];
      over_compute += seconds_over(domain, size.reduce, Activity::reduce_compute, seconds);
      replicas += seconds_over(domain, size.replicas, Activity::replicas, seconds);
    }
    costs.reduce_compute_seconds.push_back(over_compute);
    costs.replica_seconds.push_back(replicas);
  }
}

}  // namespace tessera::schedule
