#include "tessera/predict/planned_step.h"

#include <utility>

#include "tessera/base/error.h"
#include "tessera/nn/mesh_degrees.h"
#include "tessera/schedule/check/check_mesh.h"
#include "tessera/schedule/check/check_one_class.h"

namespace tessera::predict {
namespace {

// Without dead places, the groups
// of every role contain each rank exactly once (Mesh::groups), so the groups need not be listed.
std::vector<std::string> faults_of(const shard::RankLayout& layout, const schedule::Trace& trace,
                                   const std::vector<schedule::ParameterSize>& sizes,
                                   const schedule::Schedule& planned) {
  if (!layout.mesh.has_dead_places()) return check_one_class(shard::role_names(layout.domains), trace, sizes, planned);
  return check_mesh(shard::checked_groups(layout.mesh, layout.domains), layout.mesh.world_size(), trace, sizes,
                    planned);
}

}  // namespace

std::vector<std::string> StepPlan::names() const {
  std::vector<std::string> all;
  for (const PlannedParameter& parameter : parameters) all.push_back(parameter.size.name);
  return all;
}

MemoryUse lasting_memory(const std::vector<PlannedParameter>& parameters, const DryStep& dry,
                         const DryOptions& options) {
  MemoryUse memory;
  for (std::size_t id = 0; id < parameters.size(); ++id) {
    const PlannedParameter& parameter = parameters[id];
    const shard::ParameterTypes own = shard::types_of(dry.parameters[id], options.step.types);
    LastingBytes& kind = parameter.size.domain == nn::kExpertDomain ? memory.experts : memory.dense;
    kind.weights += parameter.stored_bytes;
    kind.gradients += shard::bytes_of(parameter.gradient_elements, parameter.gradient_type(own));
    kind.masters += parameter.master_bytes;
    kind.moments +=
        ops::state_bytes(options.update->rule_of(parameter.size.name), parameter.state_elements, own.accumulator);
  }
  for (const LastingBytes* kind : {&memory.dense, &memory.experts}) {
    memory.weights += kind->weights;
    memory.gradients += kind->gradients;
    memory.optimizer += kind->masters + kind->moments;
  }
  return memory;
}

std::vector<RuleBytes> rules_of_rank(const std::vector<PlannedParameter>& parameters, const DryStep& dry,
                                     const DryOptions& options) {
  std::vector<RuleBytes> rules;
  for (std::size_t id = 0; id < parameters.size(); ++id) {
    const PlannedParameter& parameter = parameters[id];
    const shard::ParameterTypes own = shard::types_of(dry.parameters[id], options.step.types);
    add_to(rules, options.update->rule_of(parameter.size.name),
           {.count = parameter.state_elements,
            .types = own,
            .gradient = parameter.gradient_type(own),
            .splits_master = parameter.splits_master});
  }
  return rules;
}

void check_schedule(const shard::RankLayout& layout, const StepPlan& step, const schedule::Schedule& schedule) {
  const std::vector<std::string> faults = faults_of(layout, step.trace, sizes_of(step.parameters), schedule);
  TESSERA_CHECK(faults.empty(), "the planned schedule is wrong: {}", faults.front());
}

void set_schedule(const CostInput& input, schedule::Schedule schedule, StepPlan& step) {
  step.schedule = std::move(schedule);
  set_unit_costs(input, step.trace, step.parameters, step.schedule, step.costs.costs);
  step.memory.gathered = step.schedule.gather_arena;
  for (const PlannedParameter& parameter : step.parameters) step.memory.gathered += parameter.row_buffers;
  step.memory.gradients += step.schedule.reduce_arena + step.schedule.scratch;
  step.prediction = schedule::simulate(step.trace, step.schedule, step.costs.costs);
}

std::vector<schedule::ParameterSize> sizes_of(const std::vector<PlannedParameter>& parameters) {
  std::vector<schedule::ParameterSize> sizes;
  for (const PlannedParameter& parameter : parameters) sizes.push_back(parameter.size);
  return sizes;
}

}  // namespace tessera::predict
