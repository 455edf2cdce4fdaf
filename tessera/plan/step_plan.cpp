#include "tessera/plan/step_plan.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/plan/replica_kinds.h"
#include "tessera/predict/recompute_choice.h"
#include "tessera/predict/traffic.h"
#include "tessera/schedule/plan/auto.h"
#include "tessera/settings/text/byte_size.h"
#include "tessera/settings/trainer_options.h"

namespace tessera::plan {
namespace {

// Throws InputError for a step with too many events. Each microbatch has `events` events.
void check_length(std::int64_t microbatches, std::int64_t events) {
  if (microbatches > kMaxEvents / std::max<std::int64_t>(events, 1))
    throw InputError("{}: a step of {} microbatches with {} events each, expected at most {} events",
                     microbatches > 1 ? "--global-batch" : "--model", microbatches, events, kMaxEvents);
}

// Throws InputError, which names the flag, for a budget that the step does not fit.
void check_budgets_of(const StepPlanRequest& request, const schedule::Trace& trace,
                      const std::vector<schedule::ParameterSize>& sizes) {
  const auto check = [&](const char* flag, const settings::Budget& gather, const settings::Budget& reduce) {
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

schedule::Trace trace_of(const StepPlanRequest& request, const predict::DryStep& dry) {
  if (request.trace) return *request.trace;
  const std::int64_t microbatches = request.run.microbatches();
  check_length(microbatches, static_cast<std::int64_t>(dry.microbatch.size()));
  return dry.trace(static_cast<int>(microbatches));
}

// A recorded trace contains only the activations that its own rank keeps.
std::int64_t activations_of(const StepPlanRequest& request, const PreparedStep& prepared) {
  if (request.trace) return peak_stashed(*request.trace);
  if (!request.replica) return predict::max_stashed(prepared.options, predict::kinds_of_ranks(prepared.options));
  std::int64_t bytes = 0;
  for (const predict::DryStep& dry : prepared.dry) bytes = std::max(bytes, peak_stashed(dry.microbatch));
  return bytes;
}

// Returns all memory except the arenas.
MemoryUse memory_without_arenas(const StepPlanRequest& request, const PreparedStep& prepared,
                                const std::vector<predict::PlannedParameter>& parameters) {
  MemoryUse memory = lasting_memory(parameters, prepared.dry.front(), prepared.options);
  memory.activations = activations_of(request, prepared);
  for (const predict::DryStep& dry : prepared.dry) memory.transfers = std::max(memory.transfers, dry.transfer_arena);
  for (const predict::DryStep& dry : prepared.dry) {
    const std::int64_t scratch = request.machine.has_gpus() ? dry.matrix_scratch : 0;
    memory.matrices = std::max(memory.matrices, dry.matrix_buffers + scratch);
  }
  memory.overhead = request.machine.overhead_bytes(cost_input_of(request, prepared.options).world_size());
  return memory;
}

// Sets the durations of the step's events. Each segment has its duration on the slowest rank, because the ranks of a
// replica wait for each other in every layer.
void set_event_costs(const StepPlanRequest& request, const PreparedStep& prepared, const predict::CostInput& input,
                     StepPlan& step) {
  step.costs = event_costs(input, prepared.dry.front(), step.trace, step.parameters);
  if (!request.replica) return;
  std::map<int, RankWork, std::greater<>> by_group;
  for (const predict::DryStep& dry : prepared.dry) {
    const predict::StepCosts costs = event_costs(input, dry, trace_of(request, dry), step.parameters);
    raise(step.costs, costs);
    const std::vector<double>& segments = costs.costs.segment_seconds;
    RankWork& work = by_group[dry.compute_ranks.front()];
    work.group_ranks = dry.compute_ranks.front();
    work.compute_seconds = std::max(work.compute_seconds, std::accumulate(segments.begin(), segments.end(), 0.0));
    work.activations = std::max(work.activations, peak_stashed(dry.microbatch));
  }
  for (const auto& [ranks, work] : by_group) step.ranks.push_back(work);
}

// Returns the bytes left for arenas. A run on GPUs leaves a twentieth of the memory free, and the plan never uses the
// margin of the request.
std::int64_t room_beside(const MemoryUse& memory, const StepPlanRequest& request) {
  const std::int64_t all = request.machine.memory_bytes;
  if (all == 0) return schedule::kUnlimited;
  return std::max<std::int64_t>(0, std::min(all - all / 20, usable_bytes(request)) - memory.total());
}

}  // namespace

std::int64_t usable_bytes(const StepPlanRequest& request) {
  const auto all = static_cast<double>(request.machine.memory_bytes);
  return request.machine.memory_bytes - static_cast<std::int64_t>(all * request.memory_margin);
}

std::int64_t missing_bytes(const MemoryUse& memory, const StepPlanRequest& request) {
  if (request.machine.memory_bytes == 0) return 0;
  return std::max<std::int64_t>(0, memory.total() - usable_bytes(request));
}

std::vector<std::string> unmeasured_keys(const StepPlanRequest& request) {
  const nn::MeshDegrees& degrees = request.run.degrees();
  const std::int64_t places = degrees.places();
  std::vector<std::string> keys;
  for (const std::string& key : request.machine.unmeasured) {
    bool is_used = true;
    if (key == "links.within_node") is_used = places > 1;
    if (key == "links.collectives") is_used = degrees.tp > 1 || request.run->mesh.etp * request.run->mesh.ep > 1;
    if (key == "links.between_nodes") is_used = places > request.machine.ranks_per_node;
    if (is_used) keys.push_back(key);
  }
  return keys;
}

predict::DryOptions dry_options_of(const StepPlanRequest& request) {
  const settings::ResolvedRun run = request.machine.has_gpus() ? request.run.on_gpus() : request.run;
  const std::vector<nn::Recompute> blocks =
      request.recompute.empty() ? settings::recompute_choice(run) : request.recompute;
  predict::DryOptions options = settings::dry_options(run, nn::BlockRecompute(blocks));
  options.kind = request.kind;
  if (request.replica)
    options.step.runtime.one_microbatch = false;  // the step is planned for any number of microbatches
  return options;
}

predict::CostInput cost_input_of(const StepPlanRequest& request, const predict::DryOptions& options) {
  // One of ep owners receives at most all rows: ep times the mean.
  return {.machine = request.machine,
          .layout = options.step.layout,
          .types = types_of(request.run),
          .update = *options.update,
          .expert_load = std::min(request.expert_load, static_cast<double>(request.run->mesh.ep)),
          .ranks = request.replica ? request.replica->ranks : 0};
}

PreparedStep prepare_step(const StepPlanRequest& request, const std::vector<predict::PlannedParameter>& known) {
  PreparedStep prepared{.options = dry_options_of(request), .dry = {}, .parameters = {}, .replica = {}};
  const shard::ParameterTypes types = types_of(request.run);
  if (!request.replica) {
    prepared.dry.push_back(dry_step(prepared.options));
    prepared.parameters = known.empty() ? planned_parameters(prepared.dry.front(), types) : known;
    return prepared;
  }
  for (const predict::RankKind& kind : predict::busiest(predict::rank_kinds(prepared.options))) {
    prepared.options.rank = kind.rank;
    prepared.dry.push_back(dry_step(prepared.options));
  }
  prepared.replica.emplace(prepared.dry.front(), types);
  prepared.parameters = prepared.replica->in(*request.replica);
  return prepared;
}

StepPlan plan_step(const StepPlanRequest& request) {
  return plan_step(request, prepare_step(request));
}

namespace {

// Returns the schedule of a step whose events have costs. Sets the costs of the schedule's transfers.
schedule::Schedule schedule_of(const StepPlanRequest& request, const PreparedStep& prepared,
                               const predict::CostInput& input, StepPlan& step) {
  const std::vector<schedule::ParameterSize> sizes = sizes_of(step.parameters);
  check_budgets_of(request, step.trace, sizes);
  const schedule::BudgetChoice choice{.gather = request.gather_budget,
                                      .reduce = request.reduce_budget,
                                      .coalesce_bytes = request.coalesce_bytes,
                                      .room = room_beside(step.memory, request)};
  schedule::Schedule planned = schedule::plan_within(step.trace, sizes, choice, [&](const schedule::Schedule& tried) {
    set_unit_costs(input, step.trace, step.parameters, tried, step.costs.costs);
    return step.costs.costs;
  });
  check_schedule(prepared.options.step.layout, step, planned);
  return planned;
}

}  // namespace

StepPlan plan_step(const StepPlanRequest& request, const PreparedStep& prepared, const schedule::Schedule* schedule) {
  const predict::DryOptions& options = prepared.options;
  const predict::DryStep& dry = prepared.dry.front();
  StepPlan step;
  step.parameters = prepared.parameters;
  step.trace = trace_of(request, dry);
  step.memory = memory_without_arenas(request, prepared, step.parameters);
  step.rules = rules_of_rank(step.parameters, dry, options);
  const predict::CostInput input = cost_input_of(request, options);
  set_event_costs(request, prepared, input, step);
  set_schedule(input, schedule ? *schedule : schedule_of(request, prepared, input, step), step);
  if (schedule) return step;
  step.on_demand = schedule::simulate_on_demand(step.trace, step.schedule, step.costs.costs);
  count_traffic(options.step.layout, dry, step);
  return step;
}

double limit_seconds(const StepPlanRequest& request, const std::vector<predict::PlannedParameter>& known) {
  StepPlanRequest work = request;
  work.recompute.assign(static_cast<std::size_t>(request.run.model()->sizes().num_layers), nn::Recompute::none);
  work.trace.reset();
  work.machine.operator_s = work.machine.handover_s = 0;
  const PreparedStep prepared = prepare_step(work, known);
  double longest = 0;
  for (const predict::DryStep& dry : prepared.dry) {
    const predict::CostInput input = cost_input_of(work, prepared.options);
    const std::vector<double> segments =
        event_costs(input, dry, trace_of(work, dry), prepared.parameters).costs.segment_seconds;
    const double copies =
        request.kind == schedule::StepKind::train ? columnwise_seconds(input, prepared.parameters) : 0;
    longest = std::max(longest, std::accumulate(segments.begin(), segments.end(), copies));
  }
  return longest;
}

void check_budgets(const settings::ResolvedRun& run) {
  const StepPlanRequest request{.run = run};
  if (!request.gather_budget && !request.reduce_budget) return;
  const auto check = [](const StepPlanRequest& each) {
    const PreparedStep prepared = prepare_step(each);
    check_budgets_of(each, trace_of(each, prepared.dry.front()), sizes_of(prepared.parameters));
  };
  if (!run.has_unused_places()) return check(request);
  const ReplicaKinds kinds = replica_kinds(run.mesh().unused, run.degrees());
  for (const ReplicaKind& kind : kinds.kinds) check(request_of(kind, kinds, request, run.microbatches()));
}

}  // namespace tessera::plan
