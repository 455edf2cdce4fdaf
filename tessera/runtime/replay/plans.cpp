#include "tessera/runtime/replay/plans.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/schedule/check/check.h"
#include "tessera/schedule/check/check_mesh.h"
#include "tessera/schedule/plan/auto.h"

namespace tessera::runtime {

void Plans::begin_step() {
  is_open_ = true;
  const auto found = plans_.find({step_.recorder.kind(), step_.recorder.microbatches()});
  current_ = found != plans_.end() ? found->second.replay.get() : nullptr;
  step_.statistics.recorded = current_ == nullptr;
}

void Plans::prefetch() {
  if (prepared_ && prepared_ != current_) prepared_->drain();
  prepared_ = current_;
  starts_prepared_ = current_ && current_->begin_step();
}

void Plans::end_step() {
  if (!std::exchange(is_open_, false) || !step_.options.scheduled) return;
  Plan& plan = plan_of_step();
  if (plan.replay && !step_.statistics.departed) plan.departures = 0;
  // In a mesh with several classes, all classes plan their steps together, so a single class does not plan again.
  if (plan.replay && (plan.departures < step_.options.departures_before_replan || step_.parallel.has_classes())) return;
  if (!should_plan()) return;
  // Steps must be done, because a new plan may free memory that they use.
  step_.agreement.wait_on_host(step_.parallel.compute->record());
  make_schedule();
}

void Plans::depart(const schedule::Event* event) {
  const Recorder& recorder = step_.recorder;
  if (recorder.in_step() && recorder.is_training() && step_.parallel.has_classes()) {
    const std::vector<std::string> names = step_.parameters.names();
    throw Error(
        "a training step leaves its schedule at event {}: got '{}', expected '{}': ranks of other classes, which "
        "follow theirs, would add other gradients",
        recorder.trace().size(), event ? to_string(*event, names) : "the end of the microbatch",
        current_->next_event(names));
  }
  if (recorder.in_step()) {
    step_.statistics.departed = true;
    ++totals_.departed_steps;
    ++plan_of_step().departures;
  }
  current_->drain();
  current_ = nullptr;
}

// Returns whether the recorded trace of the step is used for a plan.
bool Plans::should_plan() {
  const Recorder& recorder = step_.recorder;
  const bool trains = std::ranges::any_of(step_.parameters.specs(), &shard::ParameterSpec::trainable);
  const bool published = std::ranges::any_of(
      recorder.trace(), [](const schedule::Event& e) { return e.kind == schedule::EventKind::publish; });
  if (recorder.is_training() && trains && !published)
    return false;  // the optimizer skipped the step, so the trace is incomplete
  // The first step of a GPU loads kernels and connects ranks, so budgets cannot be chosen from its times.
  const bool chooses = !step_.options.gather_budget || !step_.options.reduce_budget;
  return std::exchange(is_warm_, true) || !step_.parallel.is_asynchronous() || !chooses;
}

// Returns the bytes for arenas: the free memory of the GPU minus a reserve for libraries. The allocator still holds the
// memory of the recorded step's activations.
std::int64_t Plans::room() const {
  if (!step_.parallel.is_asynchronous()) return schedule::kUnlimited;
  const base::DeviceMemory memory = base::memory_of(step_.parallel.device);
  return std::max<std::int64_t>(0, memory.free + step_.arenas.bytes() - memory.total / 20);
}

// Checks the schedule alone, and together with the schedules of the other ranks. Returns the faults. In an evaluation,
// different classes have no common collectives and may run different numbers of steps.
std::vector<std::string> Plans::verify(const std::vector<schedule::ParameterSize>& sizes,
                                       const schedule::Schedule& schedule) {
  const shard::ParallelGroups& parallel = step_.parallel;
  const schedule::Trace& trace = step_.recorder.trace();
  const schedule::CheckedGroups groups = checked_groups(parallel.mesh, parallel.domains);
  if (!parallel.has_classes()) return check_mesh(groups, parallel.world->size(), trace, sizes, schedule);
  std::vector<std::string> faults = check(trace, sizes, schedule);
  if (!faults.empty()) return faults;
  schedule::CallOrder own = call_order(trace, sizes, schedule);
  if (step_.recorder.is_training())
    return schedule::check_together(
        schedule::rank_orders(groups, step_.agreement.orders_of_classes(own), parallel.class_of));
  std::vector<int> class_of = parallel.class_of;  // the other classes have no events
  const int own_class = class_of[static_cast<std::size_t>(parallel.rank)];
  for (int& its_class : class_of) its_class = its_class == own_class ? 0 : 1;
  return schedule::check_together(schedule::rank_orders(groups, {std::move(own), {}}, class_of));
}

// Checks that the ranks of each group made the same schedule.
void Plans::compare(const schedule::Schedule& schedule) {
  const std::uint64_t gathers = gather_hash(schedule), reductions = reduce_hash(schedule);
  for (const mesh::Transfer transfer : {mesh::Transfer::gather, mesh::Transfer::gather_compute})
    for (comm::Communicator* group : step_.parallel.made(transfer))
      step_.agreement.compare(*group, gathers, "the schedule of the gathers");
  for (const mesh::Transfer transfer :
       {mesh::Transfer::reduce, mesh::Transfer::reduce_compute, mesh::Transfer::replicas})
    for (comm::Communicator* group : step_.parallel.made(transfer))
      // Replicas of different classes have different schedules, so they are not compared here. The check of all classes
      // together proves these schedules.
      if (transfer != mesh::Transfer::replicas || !step_.parallel.has_classes())
        step_.agreement.compare(*group, reductions, "the schedule of the reductions");
}

void Plans::make_schedule() {
  if (prepared_) prepared_->drain();
  prepared_ = nullptr;
  const schedule::Trace& trace = step_.recorder.trace();
  const std::vector<schedule::ParameterSize> sizes = step_.parameters.sizes();
  step_.agreement.compare(*step_.parallel.rank_class, step_.recorder.history().hash(),
                          "the optimizer's part of a step");
  step_.pool.free_unused();
  const schedule::BudgetChoice choice{
      .gather = step_.options.gather_budget,
      .reduce = step_.options.reduce_budget,
      .coalesce_bytes = step_.options.coalesce_bytes,
      .room = step_.measure.agree(trace, step_.entries.size(), room(), step_.agreement)};
  schedule::Schedule schedule = plan_within(
      trace, sizes, choice, [&](const schedule::Schedule& tried) { return step_.measure.costs(trace, tried, sizes); });
  const std::vector<std::string> faults = verify(sizes, schedule);
  TESSERA_CHECK(faults.empty(), "the schedule of a {} step is wrong: {}", name_of(step_.recorder.kind()),
                faults.front());
  compare(schedule);
  totals_.indirect = step_.arenas.grow(schedule, step_.parallel, step_.options.pushes);
  totals_.tp_indirect = step_.arenas.transfer_problem;
  Plan& plan = plan_of_step();
  plan.departures = 0;
  plan.replay = std::make_unique<Replay>(trace, std::move(schedule), step_);
  ++totals_.planned;
}

const schedule::Schedule* Plans::schedule(schedule::StepKind kind, int microbatches) const {
  const auto found = plans_.find({kind, microbatches});
  return found == plans_.end() || !found->second.replay ? nullptr : &found->second.replay->schedule();
}

void Plans::count_demand_gathers() {
  if (!step_.statistics.recorded) totals_.demand_gathers += step_.statistics.demand_gathers;
}

ScheduleStatistics Plans::statistics() const {
  ScheduleStatistics statistics = totals_;
  statistics.gather_arena_bytes = static_cast<std::int64_t>(step_.arenas.gather.size());
  statistics.reduce_arena_bytes = static_cast<std::int64_t>(step_.arenas.reduce.size());
  statistics.scratch_bytes = static_cast<std::int64_t>(step_.arenas.scratch.size());
  statistics.transfer_arena_bytes = static_cast<std::int64_t>(step_.arenas.transfers->memory().size());
  for (const auto& [key, plan] : plans_) {
    if (key.first != schedule::StepKind::train || !plan.replay) continue;
    const schedule::Schedule& schedule = plan.replay->schedule();
    statistics.train_arenas = {schedule.gather_arena, schedule.reduce_arena, schedule.scratch};
  }
  statistics.gather_peak_bytes = step_.arenas.gather_peak;
  statistics.reduce_peak_bytes = step_.arenas.reduce_peak;
  statistics.on_demand_peak_bytes = static_cast<std::int64_t>(step_.pool.peak_bytes());
  return statistics;
}

}  // namespace tessera::runtime
