// Checks that a timed program frees the memory of a collective only when the collective has ended.
#include "tessera/bench/timed_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/comm/local/world.h"
#include "tessera/nn/mesh_degrees.h"

namespace tessera::bench {
namespace {

// Rank 1 fails while its collective waits for rank 0.
TEST(TimedProgram, KeepsTheMemoryOfACollectiveInFlightAfterAnError) {
  std::atomic<bool> other_began = false;
  const auto use = [&](comm::World& world) {
    shard::ParallelGroups parallel = shard::make_parallel_groups(world, nn::rank_layout({.tp = 2}));
    runtime::Runtime runtime(parallel, {});
    const std::vector<double> segments(4);
    const auto gather = [&] {
      TimedProgram program(runtime, segments);
      program.begin_step(schedule::StepKind::train, 1);
      program.begin_microbatch(0);
      const std::array<std::int64_t, 2> counts{3, 4};
      const runtime::Issued issued =
          program.issue({.kind = runtime::ProgramCollectiveKind::all_gather, .counts = counts, .pass = {0}});
      if (world.rank() == 1) throw Error("this rank ends here");
      program.wait(issued);
    };
    if (world.rank() == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      other_began = true;
    }
    try {
      gather();
    } catch (const Error&) {
      EXPECT_TRUE(other_began);
      throw;
    }
  };
  EXPECT_THAT([&] { comm::run_local(2, {}, use); },
              ::testing::ThrowsMessage<Error>(::testing::HasSubstr("this rank ends here")));
}

}  // namespace
}  // namespace tessera::bench
