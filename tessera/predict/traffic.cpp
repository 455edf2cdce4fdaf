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

void count_gathers(StepPlan& step, Roles& roles) {
  for (const schedule::Residency& residency : step.schedule.residencies)
    for (const ParameterId id : step.schedule.gather_units[static_cast<std::size_t>(residency.unit)]) {
      const PlannedParameter& parameter = step.parameters[static_cast<std::size_t>(id)];
      step.busiest_rank.gathered += total_bytes(parameter.size.gather);
      step.all_ranks.gathered += parameter.gather_total;
      roles.add(parameter.size.domain, parameter.size.gather);
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
    step.busiest_rank.gathered += total_bytes(parameter.size.publish);
    step.all_ranks.gathered += parameter.publish_total;
    roles.add(parameter.size.domain, parameter.size.publish);
  }
}

void count_reductions(StepPlan& step, Roles& roles) {
  for (const schedule::Reduction& reduction : step.schedule.reductions)
    for (const ParameterId id : step.schedule.reduce_units[static_cast<std::size_t>(reduction.unit)]) {
      const PlannedParameter& parameter = step.parameters[static_cast<std::size_t>(id)];
      step.busiest_rank.reduced += total_bytes(parameter.size.reduce);
      step.all_ranks.reduced += parameter.reduce_total;
      roles.add(parameter.size.domain, parameter.size.reduce);
      if (!reduction.replicas) continue;
      step.busiest_rank.reduced += total_bytes(parameter.size.replicas);
      step.all_ranks.reduced += parameter.replica_total;
      roles.add(parameter.size.domain, parameter.size.replicas);
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
