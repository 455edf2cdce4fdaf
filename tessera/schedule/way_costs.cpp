#include "tessera/schedule/way_costs.h"

namespace tessera::schedule {
namespace {

Way way_of_unit(const Unit& unit, const std::vector<ParameterSize>& sizes, Way ParameterSize::*way) {
  Way sum;
  for (const ParameterId id : unit) add_hops(sum, sizes[static_cast<std::size_t>(id)].*way);
  return sum;
}

double seconds_over(const Way& way, Activity activity, const HopSeconds& seconds) {
  return has_hop(way, activity) ? seconds(activity, bytes_over(way, activity)) : 0;
}

}  // namespace

void set_way_costs(const Trace& trace, const std::vector<ParameterSize>& sizes, const Schedule& schedule,
                   const HopSeconds& seconds, Costs& costs) {
  costs.publish_seconds.assign(trace.size(), 0.0);
  for (std::size_t i = 0; i < trace.size(); ++i)
    if (trace[i].kind == EventKind::publish)
      costs.publish_seconds[i] =
          seconds_over(sizes[static_cast<std::size_t>(trace[i].parameter)].publish, Activity::publish, seconds);
  costs.gather_seconds.clear(), costs.gather_compute_seconds.clear();
  for (const Unit& unit : schedule.gather_units) {
    const Way way = way_of_unit(unit, sizes, &ParameterSize::gather);
    costs.gather_seconds.push_back(seconds_over(way, Activity::gather, seconds));
    costs.gather_compute_seconds.push_back(seconds_over(way, Activity::gather_compute, seconds));
  }
  costs.reduce_compute_seconds.clear(), costs.reduce_seconds.clear(), costs.replica_seconds.clear();
  for (const Unit& unit : schedule.reduce_units) {
    const Way way = way_of_unit(unit, sizes, &ParameterSize::reduce);
    costs.reduce_seconds.push_back(seconds_over(way, Activity::reduce, seconds));
    double over_compute = 0, replicas = 0;
    for (const ParameterId id : unit) {
      const ParameterSize& size = sizes[static_cast<std::size_t>(id)];
      over_compute += seconds_over(size.reduce, Activity::reduce_compute, seconds);
      replicas += seconds_over(size.replicas, Activity::replicas, seconds);
    }
    costs.reduce_compute_seconds.push_back(over_compute);
    costs.replica_seconds.push_back(replicas);
  }
}

}  // namespace tessera::schedule
