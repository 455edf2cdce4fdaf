// Tests injected links: the time of collectives, in virtual and in real time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <mutex>
#include <random>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/comm/local/world.h"
#include "tests/comm/ranks.h"

namespace tessera::comm {
namespace {

using base::Fence;
using quant::DType;

LocalOptions virtual_time(double latency_s, double bytes_per_second) {
  LocalOptions options;
  options.link = Link{.latency_s = latency_s, .bytes_per_second = bytes_per_second};
  options.virtual_clock = true;
  return options;
}

// Returns the largest number of bytes that one of 4 ranks receives from others, measured as the time of a collective at
// 1 byte per second.
double seconds_of(const std::function<Fence(Communicator&)>& call) {
  double seconds = 0;
  run_local(4, virtual_time(0, 1), [&](World& world) {
    const auto group = make_whole_group(world, 4);
    call(*group).synchronize();
    if (world.rank() == 0) seconds = world.clock()->now();
  });
  return seconds;
}

TEST(VirtualLink, ACollectiveTakesTheBytesOfTheRankThatReceivesMost) {
  struct Buffers {
    float a[64] = {}, b[64] = {};
  };
  std::array<Buffers, 4> all;
  const std::vector<std::int64_t> uneven{1, 2, 3, 4}, even = equal_counts(4, 5);
  const auto own = [&](Communicator& group) -> Buffers& { return all[static_cast<std::size_t>(group.rank())]; };
  EXPECT_EQ(seconds_of([&](Communicator& g) { return g.all_gather(own(g).a, own(g).b, uneven, DType::fp32); }), 9 * 4);
  EXPECT_EQ(seconds_of([&](Communicator& g) { return g.all_to_all(own(g).a, even, own(g).b, even, DType::fp32); }),
            15 * 4);
  EXPECT_EQ(seconds_of([&](Communicator& g) { return g.reduce_scatter(own(g).a, own(g).b, uneven, DType::fp32); }),
            3 * 4 * 4);
  EXPECT_EQ(seconds_of([&](Communicator& g) { return g.all_reduce(own(g).a, 8, DType::fp32); }), 2 * 3 * 8);
  EXPECT_EQ(seconds_of([&](Communicator& g) { return g.broadcast(own(g).a, 7, DType::fp32, 2); }), 28);
  EXPECT_EQ(seconds_of([&](Communicator& g) { return g.barrier(); }), 0);
  EXPECT_EQ(seconds_of([&](Communicator& g) {
              std::vector<Send> sends;
              std::vector<Receive> receives;
              if (g.rank() == 1) sends = {{0, own(g).a, 100}, {1, own(g).a, 200}, {2, own(g).a, 0}};
              if (g.rank() == 0) receives = {{1, own(g).b, 100}};
              if (g.rank() == 1) receives = {{1, own(g).b, 200}};
              if (g.rank() == 2) receives = {{1, own(g).b, 0}};
              return g.exchange(sends, receives);
            }),
            100);
}

TEST(VirtualLink, ACollectiveBeginsWithTheLastMemberAndEndsForAllAtOnce) {
  run_local(3, virtual_time(0.5, 8), [](World& world) {
    const auto group = make_whole_group(world, 3);
    std::vector<float> data(3);
    world.clock()->advance(world.rank() == 1 ? 10 : world.rank());
    const Fence fence = group->broadcast(data.data(), 2, DType::fp32, 0);
    world.clock()->advance(0.25);  // work at the same time as the collective
    fence.synchronize();
    EXPECT_EQ(world.clock()->now(), 10 + 0.5 + 1);
    EXPECT_EQ(fence.time(), 11.5);
  });
}

TEST(VirtualLink, WorkBesideACollectiveHidesIt) {
  run_local(2, virtual_time(2, 1), [](World& world) {
    const auto gather = make_whole_group(world, 2), reduce = make_whole_group(world, 2);
    const auto clock = world.clock();
    const Fence first = gather->barrier(), second = gather->barrier();
    clock->advance(3);
    first.synchronize();
    EXPECT_EQ(clock->now(), 3);  // compute hides the collective
    second.synchronize();
    EXPECT_EQ(clock->now(), 4);  // compute waits for 1 s
    // The lane of another communicator has its own link; wait() orders the two.
    const Fence third = gather->barrier(), fourth = reduce->barrier();
    reduce->lane().wait(third);
    reduce->lane().delay(0.5);
    const Fence fifth = reduce->barrier();
    fifth.synchronize();
    EXPECT_EQ(third.time(), 6);
    EXPECT_EQ(fourth.time(), 6);
    EXPECT_EQ(clock->now(), 8.5);
  });
}

TEST(VirtualLink, AGroupOfOneHasNoLink) {
  run_local(2, virtual_time(2, 1), [](World& world) {
    const auto group = world.make_group("alone", {{0}, {1}});
    float value = 1;
    group->all_reduce(&value, 1, DType::fp32).synchronize();
    EXPECT_EQ(world.clock()->now(), 0);
  });
}

// Returns the times of all fences of a program with several groups, lanes and host times. Its threads are delayed at
// random.
std::vector<std::vector<double>> times_of_a_program(unsigned seed) {
  std::vector<std::vector<double>> times(4);
  LocalOptions options = virtual_time(1e-3, 1e6);
  options.inject = [seed](int rank, const std::string& group, const std::string&, std::int64_t sequence) {
    std::minstd_rand random(seed + static_cast<unsigned>(977L * rank + sequence * 31) + group.size());
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 1500));
  };
  run_local(4, options, [&](World& world) {
    const auto whole = make_whole_group(world, 4);
    const auto pair = world.make_group("pair", {{0, 2}, {1, 3}});
    const auto own = base::make_thread_lane("own", world.clock());
    std::vector<float> a(300), b(300);
    std::vector<Fence> fences;
    std::minstd_rand random(static_cast<unsigned>(world.rank()));  // the numbers are equal in every run
    for (std::int64_t i = 0; i < 12; ++i) {
      world.clock()->advance(static_cast<double>(random() % 1000) * 1e-6);
      fences.push_back(whole->all_reduce(a.data(), 10 * (i + 1), DType::fp32));
      own->wait(fences.back());
      own->delay(static_cast<double>(random() % 1000) * 1e-6);
      fences.push_back(pair->all_reduce(b.data(), 20 * (i + 1), DType::fp32));
      pair->lane().wait(own->record());
      if (i % 3 == 2) fences[fences.size() - 2].synchronize();
    }
    own->synchronize();
    pair->lane().synchronize();
    for (const Fence& fence : fences) times[static_cast<std::size_t>(world.rank())].push_back(fence.time());
    times[static_cast<std::size_t>(world.rank())].push_back(world.clock()->now());
  });
  return times;
}

TEST(VirtualLink, TimesDoNotDependOnTheThreads) {
  const auto times = times_of_a_program(1);
  EXPECT_GT(times[0].back(), 12 * 1e-3);
  for (unsigned seed = 2; seed < 6; ++seed) EXPECT_EQ(times_of_a_program(seed), times);
}

TEST(RealLink, CollectivesTakeTheLinksTimeOnTheirLane) {
  LocalOptions options;
  options.link = Link{.latency_s = 0.05, .bytes_per_second = 4000};
  run_local(3, options, [](World& world) {
    const auto group = make_whole_group(world, 3);
    EXPECT_EQ(world.clock(), nullptr);
    std::vector<float> data(100);
    const auto begin = std::chrono::steady_clock::now();
    const Fence fence = group->broadcast(data.data(), 100, DType::fp32, 0);
    fence.synchronize();
    EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(150));
  });
}

TEST(RealLink, AFailureEndsTheSleep) {
  LocalOptions options;
  options.link = Link{.latency_s = 1000};
  const auto begin = std::chrono::steady_clock::now();
  const auto body = [](World& world) {
    const auto group = make_whole_group(world, 3);
    const Fence fence = group->barrier();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    if (world.rank() == 1) throw InputError("file not found");
    fence.synchronize();
  };
  EXPECT_THAT([&] { run_local(3, options, body); },
              ::testing::ThrowsMessage<InputError>(::testing::StrEq("file not found")));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
}

TEST(RealLink, InvalidLinksAreRefused) {
  LocalOptions options;
  for (const Link& link : {Link{.latency_s = -1}, Link{.bytes_per_second = 0}}) {
    options.link = link;
    EXPECT_THAT([&] { run_local(1, options, [](World&) {}); },
                ::testing::ThrowsMessage<InputError>(
                    ::testing::HasSubstr("expected a link with a latency of at least 0 s and above 0")));
  }
}

}  // namespace
}  // namespace tessera::comm
