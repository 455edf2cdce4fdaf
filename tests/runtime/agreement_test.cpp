// Ranks with different events get an error: at the end of the step, or during the next step.
#include "tessera/runtime/watch/agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <latch>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/comm/local/world.h"
#include "tessera/rendezvous/boards/board.h"
#include "tessera/runtime/watch/measure.h"
#include "tessera/schedule/plan/plan.h"
#include "tests/shard/dense_parallel.h"

namespace tessera::runtime {
namespace {

// The inputs of an agreement, on one rank without parameters.
struct Compared {
  explicit Compared(shard::ParallelGroups& parallel)
      : table({.mesh = parallel.mesh, .domains = parallel.domains}, parallel.rank, {}, {}),
        agreement(parallel, history, table) {}
  ParameterTable table;
  StepHistory history;
  Agreement agreement;
};

schedule::Event stash(int microbatch, std::int64_t ordinal, const std::string& way) {
  return {.kind = schedule::EventKind::stash,
          .microbatch = microbatch,
          .ordinal = static_cast<int>(ordinal),
          .op = way,
          .bytes = 8};
}

struct Difference {
  int rank = -1, step = -1;  // the rank whose events differ, and the step in which they differ
  enum class What { other, more, none } what = What::none;
};

// Records a step of two microbatches with three events each. On the rank that differs, the second event of the second
// microbatch is another event, or the last microbatch has an additional event.
void do_step(Compared& own, int rank, int step, const Difference& difference) {
  const bool differs = rank == difference.rank && step == difference.step;
  own.history.begin_step();
  for (int microbatch = 0; microbatch < 2; ++microbatch) {
    for (int i = 0; i < 3; ++i) {
      const bool other = differs && difference.what == Difference::What::other && microbatch == 1 && i == 1;
      own.history.add(stash(microbatch, i, other ? "shard" : "keep"));
    }
    if (differs && difference.what == Difference::What::more && microbatch == 1)
      own.history.add(stash(microbatch, 3, "keep"));
    own.agreement.post();
  }
}

// Runs steps on three ranks and returns the error. The result of a comparison is read `late` steps later, or earlier if
// the record of its step would be dropped.
std::string error_of(int steps, int late, const Difference& difference) {
  try {
    comm::run_local(3, {}, [&](comm::World& world) {
      shard::ParallelGroups parallel = shard::dense_parallel(world, 1, 3, 1);
      Compared own(parallel);
      for (int step = 1; step <= steps; ++step) {
        do_step(own, world.rank(), step, difference);
        own.agreement.compare_later();
        own.agreement.finish_until(step - late);
        EXPECT_TRUE(difference.rank < 0 || step < difference.step + std::min(late, static_cast<int>(kKeptSteps) - 1));
      }
      own.agreement.finish_until(steps);
    });
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

TEST(Agreement, EqualStepsAreComparedAnyNumberOfStepsLater) {
  for (const int late : {0, 1, 3, 9}) EXPECT_EQ(error_of(12, late, {}), "") << late;
}

// When the difference is detected, the ranks are in a later step that has the same events on all ranks.
TEST(Agreement, ADifferenceIsNamedIfItIsDetectedAStepLater) {
  for (const int late : {0, 1, 2}) {
    const std::string error = error_of(6, late, {.rank = 1, .step = 3, .what = Difference::What::other});
    EXPECT_NE(error.find("event 4 is"), std::string::npos) << late << ": " << error;
    EXPECT_NE(error.find("mb 1 forward stash keep"), std::string::npos) << late << ": " << error;
    EXPECT_NE(error.find("mb 1 forward stash shard"), std::string::npos) << late << ": " << error;
    EXPECT_NE(error.find("rank 1"), std::string::npos) << late << ": " << error;
  }
}

// The weights have equal sizes, so the events differ only in the number of the weight.
TEST(Agreement, TwoWeightsThatOneRankSwapsAreADifference) {
  const auto swapped = [](comm::World& world) {
    shard::ParallelGroups parallel = shard::dense_parallel(world, 1, 3, 1);
    Compared own(parallel);
    own.history.begin_step();
    for (const schedule::ParameterId id : world.rank() == 1 ? std::array{0, 2, 1} : std::array{0, 1, 2})
      own.history.add({.kind = schedule::EventKind::consume, .microbatch = 0, .parameter = id});
    own.agreement.post();
    own.agreement.compare_later();
    own.agreement.finish_until(1);
  };
  try {
    comm::run_local(3, {}, swapped);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("event 1 is"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("consume #1 (0)"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("consume #2 (0)"), std::string::npos) << error.what();
  }
}

TEST(Agreement, ADifferenceBehindTheLastEventIsNamedOnceTheStepIsOver) {
  const std::string error = error_of(6, 1, {.rank = 2, .step = 3, .what = Difference::What::more});
  EXPECT_NE(error.find("event 6 is"), std::string::npos) << error;
  EXPECT_NE(error.find("the end of the microbatch"), std::string::npos) << error;
  EXPECT_NE(error.find("rank 2"), std::string::npos) << error;
}

// If no caller requests the result of a comparison, the agreement reads it before it drops the record of the step.
TEST(Agreement, ADifferenceIsDetectedAsLongAsTheHashesOfItsStepAreKept) {
  const std::string error = error_of(12, 100, {.rank = 0, .step = 2, .what = Difference::What::other});
  EXPECT_NE(error.find("event 4 is"), std::string::npos) << error;
}

// One rank is two steps ahead and waits for a fence that is never done.
TEST(Agreement, ARankThatWaitsInALaterStepFindsTheDifferenceInTheEarlierOne) {
  try {
    comm::run_local(2, {}, [](comm::World& world) {
      shard::ParallelGroups parallel = shard::dense_parallel(world, 1, 2, 1);
      Compared own(parallel);
      const Difference difference{.rank = 1, .step = 1, .what = Difference::What::other};
      const int steps = world.rank() == 0 ? 3 : 1;
      for (int step = 1; step <= steps; ++step) do_step(own, world.rank(), step, difference);
      const base::Promise never;
      own.agreement.wait_on_host(never.fence());
    });
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("event 4 is"), std::string::npos) << error.what();
  }
}

// The events of ranks 0 and 2 differ. Both ranks throw an error and leave `collective` before rank 1 calls it. Their
// memory, which rank 1 reads and their lanes write, may then be freed.
void leave_with_a_difference(const std::function<void(shard::ParallelGroups&, Compared&)>& collective) {
  std::latch left(2);
  const auto leave = [&](comm::World& world) {
    shard::ParallelGroups parallel = shard::dense_parallel(world, 1, 3, 1);
    Compared own(parallel);
    do_step(own, world.rank(), 1, {.rank = 2, .step = 1, .what = Difference::What::other});
    if (world.rank() == 1) left.wait();
    try {
      collective(parallel, own);
    } catch (const std::exception& error) {
      if (world.rank() == 1) throw;
      EXPECT_NE(std::string(error.what()).find("event 4 is"), std::string::npos) << error.what();
      EXPECT_TRUE(parallel.world->lane().record().wait_for(std::chrono::milliseconds(500))) << "still running";
      left.arrive_and_wait();
      std::this_thread::sleep_for(std::chrono::milliseconds(100));  // time for rank 1 to call `collective`
      throw;
    }
  };
  EXPECT_THROW(comm::run_local(3, {}, leave), Error);
}

TEST(Agreement, NoComparisonIsPendingAfterADifferenceIsThrown) {
  leave_with_a_difference([](shard::ParallelGroups& parallel, Compared& own) {
    own.agreement.compare(*parallel.world, own.history.hash(), "what a step did");
  });
}

TEST(Agreement, NoMeasureIsPendingAfterADifferenceIsThrown) {
  leave_with_a_difference([](shard::ParallelGroups& parallel, Compared& own) {
    Measure(parallel).agree(own.history.trace(), 0, schedule::kUnlimited, own.agreement);
  });
}

TEST(Agreement, NoCollectiveOfACallerIsPendingAfterADifferenceIsThrown) {
  leave_with_a_difference([](shard::ParallelGroups& parallel, Compared& own) {
    std::vector<double> values(1000, parallel.rank);
    const auto count = static_cast<std::int64_t>(values.size());
    own.agreement.wait_on_host(parallel.world->all_reduce(values.data(), count, quant::DType::fp64),
                               std::chrono::milliseconds(100));
  });
}

TEST(PostedSteps, ReadsBackWhatWasPosted) {
  std::vector<StepRecord> steps(2);
  for (int number = 1; number <= 2; ++number) {
    StepRecord& step = steps[static_cast<std::size_t>(number - 1)];
    step.begin(number);
    for (int microbatch = 0; microbatch < 300; ++microbatch) step.add(stash(microbatch, number, "keep"));
  }
  steps[0].end();
  const PostedSteps posted = parse_posted_steps(encode_posted_steps(steps, {.step = 1, .index = 299}));
  ASSERT_EQ(posted.steps.size(), 2u);
  EXPECT_EQ(posted.find(3), nullptr);
  EXPECT_EQ(posted.find(1)->end(), 301u);  // the record of a finished step also contains its end
  EXPECT_EQ(posted.find(1)->hashes.back(), steps[0].hash());
  EXPECT_EQ(posted.find(2)->end(), 300u);
  EXPECT_GT(posted.find(2)->first, 0u);  // only the newest hashes are posted
  EXPECT_EQ(posted.dumped, (Stage{.step = 1, .index = 299}));
  EXPECT_TRUE(posted.is_whole);
  EXPECT_EQ(posted.events, schedule::Trace{steps[0].trace().back()});
  EXPECT_TRUE(parse_posted_steps("").steps.empty());
  EXPECT_THROW(parse_posted_steps("short"), Error);
}

// Another program may have replaced the text. Numbers that the program does not write are refused before memory of
// their size is allocated.
TEST(PostedSteps, DamagedTextsAreRefused) {
  std::vector<StepRecord> steps(1);
  steps[0].begin(1);
  steps[0].add(stash(0, 0, "keep"));
  const std::string bytes = encode_posted_steps(steps, {.step = 1, .index = 0});
  const auto damaged = [&](std::size_t at, auto value) {
    std::string text = bytes;
    std::memcpy(text.data() + at, &value, sizeof value);
    return text;
  };
  const auto says = [](const char* text) { return testing::ThrowsMessage<Error>(testing::HasSubstr(text)); };
  constexpr std::size_t kHashes = 4 + 8 + 1 + 4, kFirstEvent = kHashes + 4 + 8 + 16 + 1;
  EXPECT_THAT([&] { parse_posted_steps(damaged(0, std::uint32_t{4'000'000'000})); },
              says("posted steps: expected at most 4 steps, got 4000000000"));
  EXPECT_THAT([&] { parse_posted_steps(damaged(kHashes, std::uint32_t{4'000'000'000})); },
              says("posted steps: expected at most 256 hashes of a step, got 4000000000"));
  EXPECT_THAT([&] { parse_posted_steps(damaged(kFirstEvent, std::uint8_t{9})); },
              says("as the kind of an event, got 9"));
  EXPECT_THAT([&] { parse_posted_steps(damaged(kFirstEvent + 1, std::uint8_t{2})); },
              says("as the kind of a step, got 2"));
  EXPECT_THAT([&] { parse_posted_steps(damaged(kFirstEvent + 2, std::uint8_t{3})); }, says("as a pass, got 3"));
  for (std::size_t size = 1; size < bytes.size(); ++size)
    if (size != kFirstEvent) EXPECT_THROW(parse_posted_steps(bytes.substr(0, size)), Error) << size;
  EXPECT_EQ(parse_posted_steps(bytes).events.size(), 1u);
}

TEST(PostedSteps, HasABoundedSize) {
  std::vector<StepRecord> steps(1);
  steps[0].begin(1);
  for (int i = 0; i < 20'000; ++i) steps[0].add(stash(0, i, "keep"));
  const std::string bytes = encode_posted_steps(steps, {.step = 1, .index = 0});
  EXPECT_LE(bytes.size(), rendezvous::kLongestStatus);
  const PostedSteps posted = parse_posted_steps(bytes);
  EXPECT_FALSE(posted.is_whole);
  EXPECT_GT(posted.events.size(), 1000u);
}

}  // namespace
}  // namespace tessera::runtime
