#include "tessera/predict/traffic.h"

#include <fmt/ranges.h>

#include <map>
#include <tuple>

namespace tessera::predict {
namespace {

using mesh::Transfer;
using schedule::Event, schedule::EventKind, schedule::ParameterId;

// Adds up bytes by role.
class Roles {
 public:
  explicit Roles(const shard::RankLayout& layout) : layout_(layout) {}

  void add(int domain, Transfer transfer, std::int64_t bytes) {
    if (bytes == 0) return;
    const mesh::Axes axes = role_of(layout_.mesh, layout_.domains[static_cast<std::size_t>(domain)], transfer).axes;
    bytes_[{domain, std::string(title_of(transfer)), fmt::format("{}", fmt::join(axes, " x "))}] += bytes;
  }
  void add(int domain, const schedule::Way& way) {
    for (const schedule::Hop& hop : way) add(domain, hop.transfer, hop.bytes);
  }
  void add_collective(const std::string& group, std::int64_t bytes) {
    for (std::size_t domain = 0; domain < layout_.domains.size(); ++domain)
      if (program_name(layout_.domains[domain]) == group)
        return add(static_cast<int>(domain), Transfer::program, bytes);
  }

  std::vector<RoleBytes> list() const {
    std::vector<RoleBytes> roles;
    for (const auto& [key, bytes] : bytes_)
      roles.push_back(
          {.domain = std::get<0>(key), .purpose = std::get<1>(key), .over = std::get<2>(key), .bytes = bytes});
    return roles;
  }

 private:
  const shard::RankLayout& layout_;
  std::map<std::tuple<int, std::string, std::string>, std::int64_t> bytes_;
};

// Counts the transfers of one way of a parameter. `total`: the bytes that all ranks receive.
void count(StepPlan& step, Roles& roles, std::int64_t Traffic::*kind, const PlannedParameter& parameter,
           const schedule::Way& way, std::int64_t total) {
  step.busiest_rank.*kind += total_bytes(way);
  step.all_ranks.*kind += total;
  roles.add(parameter.size.domain, way);
}

void count_gathers(StepPlan& step, Roles& roles) {
  for (const schedule::Residency& residency : step.schedule.residencies)
    for (const ParameterId id : step.schedule.gather_units[static_cast<std::size_t>(residency.unit)]) {
      const PlannedParameter& parameter = step.parameters[static_cast<std::size_t>(id)];
      count(step, roles, &Traffic::gathered, parameter, parameter.size.gather, parameter.gather_total);
    }
}

void count_rows_and_publishes(StepPlan& step, std::int64_t ranks, Roles& roles) {
  for (const Event& event : step.trace) {
    if (event.parameter < 0) continue;
    const PlannedParameter& parameter = step.parameters[static_cast<std::size_t>(event.parameter)];
    // For rows of a table, every rank receives as many bytes as it sends.
    if (schedule::reads_rows(event)) {
      step.busiest_rank.gathered += event.bytes;
      step.all_ranks.gathered += ranks * event.bytes;
      roles.add(parameter.size.domain, Transfer::rows, event.bytes);
    }
    if (event.kind != EventKind::publish) continue;
    count(step, roles, &Traffic::gathered, parameter, parameter.size.publish, parameter.publish_total);
  }
}

void count_reductions(StepPlan& step, Roles& roles) {
  for (const schedule::Reduction& reduction : step.schedule.reductions)
    for (const ParameterId id : step.schedule.reduce_units[static_cast<std::size_t>(reduction.unit)]) {
      const PlannedParameter& parameter = step.parameters[static_cast<std::size_t>(id)];
      count(step, roles, &Traffic::reduced, parameter, parameter.size.reduce, parameter.reduce_total);
      if (reduction.replicas)
        count(step, roles, &Traffic::reduced, parameter, parameter.size.replicas, parameter.replica_total);
    }
}

}  // namespace

void count_traffic(const shard::RankLayout& layout, const DryStep& dry, StepPlan& step) {
  Roles roles(layout);
  count_gathers(step, roles);
  count_rows_and_publishes(step, layout.mesh.world_size(), roles);
  count_reductions(step, roles);
  for (std::size_t event = 0; event < dry.microbatch.size(); ++event)
    if (dry.received[event] > 0)
      roles.add_collective(dry.microbatch[event].group, step.schedule.microbatches * dry.received[event]);
  step.roles = roles.list();
}

}  // namespace tessera::predict
