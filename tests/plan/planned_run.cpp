#include "tests/plan/planned_run.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <mutex>
#include <numeric>

#include "tessera/comm/local/world.h"
#include "tessera/settings/trainer_options.h"
#include "tessera/train/trainer.h"

namespace tessera::plan {
namespace {

struct Moved {
  std::int64_t gathered = 0, reduced = 0;  // bytes that all ranks receive
  std::int64_t activations = 0;            // bytes that a rank whose trace is planned receives
  std::int64_t gather_arena = 0, reduce_arena = 0;
  std::int64_t transfer_arena = 0, matrices = 0;  // of a rank whose trace is planned
};

// A plan has the trace of a rank that is the last of its compute ranks in every domain.
bool has_trace_of_plan(const shard::ParallelGroups& parallel) {
  for (std::size_t domain = 0; domain < parallel.domains.size(); ++domain) {
    const int number = static_cast<int>(domain);
    if (parallel.place(number).compute + 1 != parallel.mesh.size(parallel.domains[domain].compute)) return false;
  }
  return true;
}

Moved run_planned(const StepPlanRequest& request, const schedule::Trace& planned) {
  const settings::ResolvedRun& run = request.run;
  std::mutex mutex;
  Moved moved;
  comm::run_local(static_cast<int>(run->mesh.ranks), {}, [&](comm::World& world) {
    train::TrainerOptions options = settings::trainer_options(run);
    options.step.runtime.gather_budget = request.gather_budget;
    options.step.runtime.reduce_budget = request.reduce_budget;
    options.step.runtime.coalesce_bytes = request.coalesce_bytes;
    train::Trainer trainer(world, options);
    train::set_initial_values(trainer.runtime(), 1);
    const std::int64_t tokens = run->seq_len, blocks = run->mesh.gtp * run->mesh.dp;
    const auto batch = [&](int) {
      models::Batch zeros{
          .tokens = at::zeros({tokens}, at::kLong), .targets = at::zeros({tokens}, at::kLong), .layout = {}};
      zeros.layout = {.batch = 1, .seq_len = tokens, .positions = at::arange(tokens, at::kLong), .cu_seqlens = {}};
      return zeros;
    };
    train::StepResult result;
    for (int step = 0; step < 4; ++step)
      result = trainer.train_step({.microbatches = static_cast<int>(run->global_batch / blocks),
                                   .tokens = run->global_batch * tokens,
                                   .batch = batch},
                                  1e-3);
    const std::lock_guard lock(mutex);
    moved.gathered += result.statistics.gathered_bytes;
    moved.reduced += result.statistics.reduced_bytes;
    const runtime::ScheduleStatistics schedules = trainer.runtime().schedule_statistics();
    moved.gather_arena = schedules.gather_arena_bytes;
    moved.reduce_arena = schedules.reduce_arena_bytes;
    if (has_trace_of_plan(trainer.parallel())) {
      EXPECT_EQ(trainer.runtime().trace(), planned);
      moved.transfer_arena = schedules.transfer_arena_bytes;
      moved.matrices = trainer.optimizer().matrix_bytes();
      const auto& activations = result.statistics.activations_by_format;
      moved.activations = std::accumulate(activations.begin(), activations.end(), std::int64_t{0});
    }
  });
  return moved;
}

void expect_roles_add_up(const StepPlan& step, std::int64_t activations) {
  std::int64_t gathered = 0, reduced = 0, program = 0;
  for (const RoleBytes& role : step.roles) {
    EXPECT_GT(role.bytes, 0) << role.purpose << " over " << role.over;
    const bool reduces = role.purpose.starts_with("reduce") || role.purpose == "replicas";
    (role.purpose == "program" ? program : reduces ? reduced : gathered) += role.bytes;
  }
  EXPECT_EQ(gathered, step.busiest_rank.gathered);
  EXPECT_EQ(reduced, step.busiest_rank.reduced);
  EXPECT_EQ(program, activations);
}

}  // namespace

StepPlan expect_as_planned(const StepPlanRequest& request) {
  StepPlan step = plan_step(request);
  const Moved moved = run_planned(request, step.trace);
  EXPECT_EQ(moved.gathered, step.all_ranks.gathered);
  EXPECT_EQ(moved.reduced, step.all_ranks.reduced);
  EXPECT_EQ(moved.gather_arena, step.schedule.gather_arena);
  EXPECT_EQ(moved.reduce_arena, step.schedule.reduce_arena);
  EXPECT_EQ(moved.transfer_arena, step.memory.transfers);
  EXPECT_EQ(moved.matrices, step.memory.matrices);
  expect_roles_add_up(step, moved.activations);
  return step;
}

}  // namespace tessera::plan
