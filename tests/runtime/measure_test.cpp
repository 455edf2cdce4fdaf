// Tests the costs of a recorded step, which are measured with the host's clock on a CPU and with events on the compute
// stream on a GPU.
#include "tessera/runtime/watch/measure.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <thread>

#include "tessera/comm/local/world.h"
#include "tessera/comm/nccl/world.h"
#include "tessera/runtime/runtime.h"
#include "tessera/schedule/plan/plan.h"
#include "tests/shard/dense_parallel.h"

namespace tessera::runtime {
namespace {

// A stash, a collective of the program that compute then waits for, and a fetch.
schedule::Trace trace_of_three() {
  return {{.kind = schedule::EventKind::stash, .microbatch = 0, .op = "keep", .bytes = 8},
          {.kind = schedule::EventKind::comm, .microbatch = 0, .group = "tp", .op = "all_reduce", .bytes = 8},
          {.kind = schedule::EventKind::fetch,
           .microbatch = 0,
           .pass = schedule::Pass::backward,
           .op = "keep",
           .bytes = 8}};
}

schedule::Costs costs_of(shard::ParallelGroups& parallel, Measure& measure, const schedule::Trace& trace) {
  const ParameterTable table({.mesh = parallel.mesh, .domains = parallel.domains}, parallel.rank, {}, {});
  const StepHistory history;
  Agreement agreement(parallel, history, table);
  EXPECT_EQ(measure.agree(trace, 0, schedule::kUnlimited, agreement), schedule::kUnlimited);
  return measure.costs(trace, {}, {});
}

TEST(Measures, OnACpuTheLongestOfAllRanksCounts) {
  comm::LocalOptions options;
  options.virtual_clock = true;
  comm::run_local(2, options, [&](comm::World& world) {
    shard::ParallelGroups parallel = shard::dense_parallel(world, 1, 2, 1);
    const schedule::Trace trace = trace_of_three();
    Measure measure(parallel);
    StepStatistics statistics;
    measure.begin_step();
    parallel.clock->advance(world.rank() == 0 ? 0.25 : 0.5);
    measure.event(0, statistics, {});
    measure.passed({});
    parallel.clock->advance(1);
    measure.event(1, statistics, {});
    parallel.clock->advance(2);  // half of this time is a wait
    statistics.exposed_seconds = 1;
    measure.waited(1, 1, 1, {});
    measure.event(2, statistics, {});
    const schedule::Costs costs = costs_of(parallel, measure, trace);
    EXPECT_EQ(costs.segment_seconds, (std::vector<double>{0.5, 1, 1}));
    EXPECT_EQ(costs.comm_seconds, (std::vector<double>{0, 1, 0}));
    EXPECT_EQ(costs.comm_waits, (std::vector<int>{0, 1, 2}));
    EXPECT_FALSE(costs.shared_link);
  });
}

// The time of a collective is the work from its event to its wait, plus the longest wait of a rank. Other waits, for
// example for a weight that is gathered on demand, do not count.
TEST(Measures, ACollectiveThatIsWaitedForLater) {
  comm::LocalOptions options;
  options.virtual_clock = true;
  comm::run_local(2, options, [&](comm::World& world) {
    shard::ParallelGroups parallel = shard::dense_parallel(world, 1, 2, 1);
    schedule::Trace trace = trace_of_three();
    trace.push_back(trace[1]);  // compute does not wait for this collective
    trace.push_back(trace[2]);
    Measure measure(parallel);
    StepStatistics statistics;
    measure.begin_step();
    measure.event(0, statistics, {});
    measure.event(1, statistics, {});
    parallel.clock->advance(2);
    measure.event(2, statistics, {});
    const double wait = world.rank() == 0 ? 0.5 : 0.25;
    parallel.clock->advance(wait + 4);
    statistics.exposed_seconds = wait + 4;
    measure.waited(1, 2, wait, {});
    measure.event(3, statistics, {});
    measure.event(4, statistics, {});
    const schedule::Costs costs = costs_of(parallel, measure, trace);
    EXPECT_EQ(costs.segment_seconds, (std::vector<double>{0, 0, 2, 0, 0}));
    EXPECT_EQ(costs.comm_seconds, (std::vector<double>{0, 2.5, 0, 0, 0}));
    EXPECT_EQ(costs.comm_waits, (std::vector<int>{0, 2, 2, 3, 4}));
  });
}

// The arenas must fit into the free memory of the fullest GPU.
TEST(Measures, TheRoomOfTheFullestRankCounts) {
  comm::run_local(3, {}, [&](comm::World& world) {
    shard::ParallelGroups parallel = shard::dense_parallel(world, 1, 3, 1);
    const schedule::Trace trace = trace_of_three();
    Measure measure(parallel);
    measure.begin_step();
    const ParameterTable table({.mesh = parallel.mesh, .domains = parallel.domains}, parallel.rank, {}, {});
    const StepHistory history;
    Agreement agreement(parallel, history, table);
    const std::int64_t room = std::array{7000, 5000, 6000}[static_cast<std::size_t>(world.rank())];
    EXPECT_EQ(measure.agree(trace, 0, room, agreement), 5000);
  });
}

// Compute uses one weight, waits for a collective during this use, and then needs a second weight. With an arena for
// both weights, the second weight is gathered during the wait. The automatic budget chooses the larger arena only if it
// knows that the collective takes time, although there is an event between the issue of the collective and its wait.
TEST(Measures, ChosenBudgetsLetGathersHideBehindCollectives) {
  comm::LocalOptions options;
  options.link = comm::Link{.latency_s = 0, .bytes_per_second = 1e6};
  options.virtual_clock = true;
  for (const std::size_t elements : {std::size_t{1}, std::size_t{4096}})
    comm::run_local(4, options, [&](comm::World& world) {
      shard::ParallelGroups parallel = shard::dense_parallel(world, 2, 2, 1);
      Runtime runtime(parallel, {});
      for (const char* name : {"first", "second"})
        runtime.parameters().add(
            {.name = name, .dims = {64, 16}, .compute = layout::cut_cols({64, 16}, 2), .trainable = false});
      std::vector<float> numbers(elements);
      const auto count = static_cast<std::int64_t>(elements);
      const auto step = [&] {
        runtime.program().begin_step(schedule::StepKind::evaluate, 1);
        runtime.program().begin_microbatch(0);
        runtime.program().consume(0, {0, schedule::Pass::forward});
        const Issued issued = runtime.program().issue({.out = numbers.data(), .counts = {&count, 1}, .pass = {0}});
        const StashItem item{.bytes = 8};
        runtime.program().stash({&item, 1}, {0, schedule::Pass::forward}, StashWay::keep);
        runtime.program().wait(issued);
        runtime.program().release(0, {0, schedule::Pass::forward});
        runtime.program().consume(1, {0, schedule::Pass::forward});
        runtime.program().release(1, {0, schedule::Pass::forward});
        runtime.program().end_microbatch(0);
        runtime.program().end_step();
      };
      step();
      step();
      const std::int64_t weight = std::int64_t{64} * 8 * 4;
      EXPECT_EQ(runtime.schedule_statistics().gather_arena_bytes, elements == 1 ? weight : 2 * weight);
    });
}

// Compute works for 20 ms, and the host needs 600 ms for the actions of an event. Only the time of compute must count.
TEST(Measures, OnAGpuTimeOfTheHostDoesNotCount) {
  if (base::cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  comm::NcclOptions options;
  options.store = rendezvous::make_memory_store();
  base::set_device(options.device);
  const auto world = comm::make_nccl_world(options);
  shard::ParallelGroups parallel = shard::dense_parallel(*world, 1, 1, 1);
  const schedule::Trace trace = trace_of_three();
  Measure measure(parallel);
  FencePairs waits;
  const auto pass = [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(600));
    measure.passed(waits);
  };
  measure.begin_step();
  measure.event(0, {}, waits);
  pass();
  parallel.compute->delay(0.02);
  measure.event(1, {}, waits);
  pass();
  const base::Fence begin = parallel.compute->record_timed();
  parallel.compute->delay(0.03);
  waits.emplace_back(begin, parallel.compute->record_timed());
  measure.waited(1, 1, 0, waits);
  parallel.compute->delay(0.02);
  measure.event(2, {}, waits);
  pass();
  const schedule::Costs costs = costs_of(parallel, measure, trace);
  ASSERT_EQ(costs.segment_seconds.size(), 3u);
  // Other work on the GPU may make all of these times longer, but by less than the time of the host.
  constexpr double kLimit = 0.3;
  EXPECT_LT(costs.segment_seconds[0], kLimit);
  EXPECT_GT(costs.segment_seconds[1], 0.015);
  EXPECT_LT(costs.segment_seconds[1], kLimit);
  EXPECT_GT(costs.segment_seconds[2], 0.015);
  EXPECT_LT(costs.segment_seconds[2], kLimit);
  EXPECT_EQ(costs.comm_seconds[0], 0);
  EXPECT_GT(costs.comm_seconds[1], 0.025);
  EXPECT_LT(costs.comm_seconds[1], kLimit);
  EXPECT_TRUE(costs.shared_link);
}

}  // namespace
}  // namespace tessera::runtime
