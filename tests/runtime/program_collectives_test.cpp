// Tests collectives of the program over the compute ranks of two domains.
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "tessera/comm/local/world.h"
#include "tessera/runtime/record/dry_run.h"
#include "tessera/runtime/runtime.h"

namespace tessera::runtime {
namespace {

using schedule::Pass;

constexpr int kRanks = 4, kSteps = 3;

// The first domain has groups of 2 consecutive ranks. The second domain has one group of all 4 ranks.
shard::RankLayout two_domains() {
  const mesh::Grid first{{"a", 2}, {"b", 2}, {"c", 1}}, second{{"x", kRanks}, {"y", 1}, {"z", 1}};
  return {.mesh = mesh::Mesh({first, second}, mesh::live_places(first, {})),
          .domains = {{.compute = {"a"}, .storage = {"b"}, .duplicates = {}, .replicas = {"c"}},
                      {.compute = {"x"}, .storage = {"y"}, .duplicates = {}, .replicas = {"z"}}}};
}

// The values of one rank's collectives: all_gather over the first domain; all_gather, all_reduce and reduce_scatter
// over the second.
struct Values {
  float own = 0;
  std::array<float, 2> pair{};
  std::array<float, kRanks> all{};
  float sum = 0, part = 0;
};

void run_collective(Program& program, const ProgramCollective& collective) {
  program.wait(program.issue(collective));
}

void run_step(Program& program, Values& values) {
  const std::vector<std::int64_t> ones(kRanks, 1);
  const std::int64_t one = 1;
  values.sum = values.own;
  program.begin_step(schedule::StepKind::train, 1);
  program.begin_microbatch(0);
  run_collective(program, {.kind = ProgramCollectiveKind::all_gather,
                           .in = &values.own,
                           .out = values.pair.data(),
                           .counts = std::span(ones).first(2),
                           .pass = {0}});
  run_collective(program, {.kind = ProgramCollectiveKind::all_gather,
                           .in = &values.own,
                           .out = values.all.data(),
                           .counts = ones,
                           .pass = {0},
                           .domain = 1});
  run_collective(program, {.out = &values.sum, .counts = {&one, 1}, .pass = {0, Pass::backward}, .domain = 1});
  run_collective(program, {.kind = ProgramCollectiveKind::reduce_scatter,
                           .in = values.all.data(),
                           .out = &values.part,
                           .counts = ones,
                           .pass = {0, Pass::backward},
                           .domain = 1});
  program.end_microbatch(0);
  program.end_step();
}

TEST(ProgramCollectives, RunOverTheDomainThatTheyName) {
  comm::run_local(kRanks, {}, [](comm::World& world) {
    shard::ParallelGroups parallel = shard::make_parallel_groups(world, two_domains());
    Runtime runtime(parallel, {});
    const int rank = world.rank();
    EXPECT_EQ(runtime.program().group_rank(), rank % 2);
    EXPECT_EQ(runtime.program().group_size(), 2);
    EXPECT_EQ(runtime.program().nominal_size(), 2);
    EXPECT_EQ(runtime.program().group_rank(1), rank);
    EXPECT_EQ(runtime.program().group_size(1), kRanks);
    EXPECT_EQ(runtime.program().nominal_size(1), kRanks);
    for (int step = 0; step < kSteps; ++step) {  // the first is recorded, the others are replayed
      Values values{.own = static_cast<float>(rank + 1)};
      run_step(runtime.program(), values);
      const auto first = static_cast<float>(rank / 2 * 2 + 1);
      EXPECT_EQ(values.pair, (std::array<float, 2>{first, first + 1}));
      EXPECT_EQ(values.all, (std::array<float, kRanks>{1, 2, 3, 4}));
      EXPECT_EQ(values.sum, 10);
      EXPECT_EQ(values.part, static_cast<float>(kRanks * (rank + 1)));
      EXPECT_EQ(runtime.statistics().recorded, step == 0);
    }
  });
}

TEST(ProgramCollectives, HaveTheSameEventsAndTrafficInADryRun) {
  comm::run_local(kRanks, {}, [](comm::World& world) {
    shard::ParallelGroups parallel = shard::make_parallel_groups(world, two_domains());
    Runtime runtime(parallel, {});
    DryRun dry(two_domains(), world.rank(), {}, {});
    Values values;
    run_step(runtime.program(), values);
    run_step(dry, values);
    ASSERT_EQ(dry.trace().size(), 4U);
    EXPECT_EQ(dry.trace(), runtime.trace());
    EXPECT_EQ(dry.activations(), runtime.statistics().activations_by_format);
    EXPECT_EQ(dry.trace()[0].group, "a");
    EXPECT_EQ(dry.trace()[1].group, "x");
  });
}

TEST(ProgramCollectives, OverADomainThatIsNotThereAreRefused) {
  comm::run_local(1, {}, [](comm::World& world) {
    const mesh::Grid grid{{"a", 1}, {"b", 1}, {"c", 1}};
    shard::ParallelGroups parallel =
        shard::make_parallel_groups(world, {.mesh = mesh::Mesh(grid), .domains = {two_domains().domains.front()}});
    Runtime runtime(parallel, {});
    EXPECT_THROW(runtime.program().group_size(1), Error);
  });
}

}  // namespace
}  // namespace tessera::runtime
