#include "tessera/run/plan/step_plan.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/run/config/byte_size.h"
#include "tessera/run/config/resolve.h"
#include "tessera/run/recompute_choice.h"
#include "tessera/run/trainer_options.h"
#include "tessera/schedule/check/check_mesh.h"

namespace tessera::run {
namespace {

// Throws InputError for a step with too many events. Each microbatch has `events` events.
void check_length(std::int64_t microbatches, std::int64_t events) {
  if (microbatches > kMostEvents / std::max<std::int64_t>(events, 1))
    throw InputError("{}: a step of {} microbatches with {} events each, expected at most {} events",
                     microbatches > 1 ? "--global-batch" : "--model", microbatches, events, kMostEvents);
}

// Throws InputError, which names the flag, for a budget that the step does not fit.
void check_budgets_of(const StepPlanRequest& request, const schedule::Trace& trace,
                      const std::vector<schedule::ParameterSize>& sizes) {
  const auto check = [&](const char* flag, const Budget& gather, const Budget& reduce) {
    try {
      schedule::plan(trace, sizes,
                     {.gather_budget = gather.value_or(schedule::kUnlimited),
                      .reduce_budget = reduce.value_or(schedule::kUnlimited),
                      .coalesce_bytes = request.coalesce_bytes});
    } catch (const InputError& error) {
      throw InputError("{}: {}", flag, error.what());
    }
  };
  if (request.gather_budget) check("--gather-budget", request.gather_budget, {});
  if (request.reduce_budget) check("--reduce-budget", {}, request.reduce_budget);
}

predict::DryOptions dry_options_of(const StepPlanRequest& request) {
  predict::DryOptions options =
      dry_options(request.config, *request.model, nn::BlockRecompute(recompute_choice(request.config, *request.model)));
  options.kind = request.kind;
  return options;
}

schedule::Trace trace_of(const StepPlanRequest& request, const predict::DryStep& dry) {
  if (request.trace) return *request.trace;
  const std::int64_t microbatches = microbatches_of(request.config);
  check_length(microbatches, static_cast<std::int64_t>(dry.microbatch.size()));
  return dry.trace(static_cast<int>(microbatches));
}

// A recorded trace contains only the activations that its own rank keeps.
std::int64_t activations_of(const StepPlanRequest& request, const predict::DryOptions& options) {
  if (request.trace) return peak_stashed(*request.trace);
  return most_stashed(options, kinds_of_ranks(options));
}

// Returns all memory except the arenas.
MemoryUse lasting_memory(const StepPlanRequest& request, const predict::DryOptions& options, const StepPlan& step) {
  const shard::ParameterTypes types = types_of(request.config);
  const auto accumulator = static_cast<std::int64_t>(quant::size_of(types.accumulator));
  MemoryUse memory{.activations = activations_of(request, options)};
  for (const predict::PlannedParameter& parameter : step.parameters) {
    memory.weights += parameter.stored_bytes;
    memory.gradients += parameter.gradient_elements * accumulator;
    memory.optimizer += parameter.state_elements * accumulator * (types.model != types.accumulator ? 3 : 2);
  }
  return memory;
}

std::vector<schedule::ParameterSize> sizes_of(const StepPlan& step) {
  std::vector<schedule::ParameterSize> sizes;
  for (const predict::PlannedParameter& parameter : step.parameters) sizes.push_back(parameter.size);
  return sizes;
}

// Returns the bytes left for arenas, with the same margin as a run on GPUs.
std::int64_t room_beside(const MemoryUse& memory, const predict::Machine& machine) {
  if (machine.memory_bytes == 0) return schedule::kUnlimited;
  return std::max<std::int64_t>(0, machine.memory_bytes - machine.memory_bytes / 20 - memory.total());
}

void count_traffic(StepPlan& step, std::int64_t ranks) {
  for (const schedule::Residency& residency : step.schedule.residencies)
    for (const schedule::ParameterId id : step.schedule.gather_units[static_cast<std::size_t>(residency.unit)]) {
      const predict::PlannedParameter& parameter = step.parameters[static_cast<std::size_t>(id)];
      step.of_a_rank.gathered += total_bytes(parameter.size.gather);
      step.of_all_ranks.gathered += parameter.gather_total;
    }
  for (const schedule::Event& event : step.trace) {
    // For rows of a table, every rank receives as many bytes as it sends.
    if (event.kind == schedule::EventKind::comm && event.parameter >= 0) {
      step.of_a_rank.gathered += event.bytes;
      step.of_all_ranks.gathered += ranks * event.bytes;
    }
    if (event.kind != schedule::EventKind::publish) continue;
    const predict::PlannedParameter& parameter = step.parameters[static_cast<std::size_t>(event.parameter)];
    step.of_a_rank.gathered += total_bytes(parameter.size.publish);
    step.of_all_ranks.gathered += parameter.publish_total;
  }
  for (const schedule::Reduction& reduction : step.schedule.reductions)
    for (const schedule::ParameterId id : step.schedule.reduce_units[static_cast<std::size_t>(reduction.unit)]) {
      const predict::PlannedParameter& parameter = step.parameters[static_cast<std::size_t>(id)];
      step.of_a_rank.reduced += total_bytes(parameter.size.reduce);
      if (reduction.replicas) step.of_a_rank.reduced += total_bytes(parameter.size.replicas);
      step.of_all_ranks.reduced += parameter.reduce_total + (reduction.replicas ? parameter.replica_total : 0);
    }
}

}  // namespace

std::vector<std::string> StepPlan::names() const {
  std::vector<std::string> all;
  for (const predict::PlannedParameter& parameter : parameters) all.push_back(parameter.size.name);
  return all;
}

std::int64_t microbatches_of(const TrainConfig& config) {
  return config.global_batch / (config.micro_batch * config.gtp * config.dp);
}

TrainConfig resolve_plan_config(TrainConfig config, const models::ModelConfig& model) {
  if (!config.grad_wire) config.grad_wire = config.dtype;
  // A plan starts no ranks, so it accepts any number of ranks. A benchmark that starts ranks names its backend.
  if (!config.given.contains("backend")) config.backend = Backend::mpi;
  const std::int64_t part = config.tp * config.gtp;
  const std::int64_t replicas = config.dp > 0 ? config.dp : std::max<std::int64_t>(1, config.ranks / part);
  if (!config.given.contains("global_batch")) config.global_batch = config.micro_batch * config.gtp * replicas;
  return resolve_model(resolve_ranks(std::move(config), std::nullopt), model);
}

StepPlan plan_step(const StepPlanRequest& request) {
  const TrainConfig& config = request.config;
  StepPlan step;
  const predict::DryOptions options = dry_options_of(request);
  const predict::DryStep dry = dry_step(options);
  step.parameters = planned_parameters(dry, types_of(config));
  step.trace = trace_of(request, dry);
  step.memory = lasting_memory(request, options, step);
  const predict::CostInput input{.machine = request.machine, .layout = options.layout, .types = types_of(config)};
  step.costs = event_costs(input, dry, step.trace, step.parameters);
  check_budgets_of(request, step.trace, sizes_of(step));
  const schedule::BudgetChoice choice{.gather = request.gather_budget,
                                      .reduce = request.reduce_budget,
                                      .coalesce_bytes = request.coalesce_bytes,
                                      .room = room_beside(step.memory, request.machine)};
  step.schedule = schedule::plan_within(step.trace, sizes_of(step), choice, [&](const schedule::Schedule& tried) {
    set_unit_costs(input, step.trace, step.parameters, tried, step.costs.costs);
    return step.costs.costs;
  });
  set_unit_costs(input, step.trace, step.parameters, step.schedule, step.costs.costs);
  const mesh::Mesh& mesh = options.layout.mesh;
  const std::vector<std::string> faults = check_mesh(shard::role_groups(mesh, options.layout.domains),
                                                     mesh.world_size(), step.trace, sizes_of(step), step.schedule);
  TESSERA_CHECK(faults.empty(), "the planned schedule is wrong: {}", faults.front());
  step.memory.gathered = step.schedule.gather_arena;
  for (const predict::PlannedParameter& parameter : step.parameters) step.memory.gathered += parameter.row_buffers;
  step.memory.gradients += step.schedule.reduce_arena + step.schedule.scratch;
  step.prediction = schedule::simulate(step.trace, step.schedule, step.costs.costs);
  step.on_demand = schedule::simulate_on_demand(step.trace, step.schedule, step.costs.costs);
  count_traffic(step, mesh.world_size());
  return step;
}

void check_budgets(const TrainConfig& config, const models::ModelConfigPtr& model) {
  StepPlanRequest request{.config = config, .model = model, .machine = {}};
  request.gather_budget = parse_budget(config.gather_budget, "--gather-budget");
  request.reduce_budget = parse_budget(config.reduce_budget, "--reduce-budget");
  request.coalesce_bytes = parse_byte_size(config.coalesce, "--coalesce");
  if (!request.gather_budget && !request.reduce_budget) return;
  const predict::DryStep dry = dry_step(dry_options_of(request));
  StepPlan step;
  step.parameters = planned_parameters(dry, types_of(config));
  check_budgets_of(request, trace_of(request, dry), sizes_of(step));
}

}  // namespace tessera::run
