// Tests messages into memory that peers share: the received data equals the sent data in every round.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <random>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/base/lanes/cuda_lane.h"
#include "tests/comm/nccl/recorded.h"
#include "tests/comm/nccl/run.h"
#include "tests/comm/placed.h"

namespace tessera::comm {
namespace {

using quant::DType;
using std::chrono::milliseconds;
using testing::HasSubstr;

class NcclPushes : public NcclTest {
 protected:
  static std::span<std::byte> all_of(base::Buffer& buffer) { return {buffer.data(), buffer.size()}; }
  static float value(int from, int to, int round, std::int64_t index) {
    return static_cast<float>((from * 7 + to * 31 + round * 3 + static_cast<int>(index % 97)) % 1021);
  }
  static std::vector<float> values(int from, int to, int round, std::int64_t count) {
    std::vector<float> values;
    for (std::int64_t i = 0; i < count; ++i) values.push_back(value(from, to, round, i));
    return values;
  }
  static std::vector<float> read(const std::byte* memory, std::int64_t count) {
    std::vector<float> values(static_cast<std::size_t>(count));
    base::copy_bytes(values.data(), memory, values.size() * sizeof(float));
    return values;
  }
  // Gathers `count` values of each rank into `shared` and compares them with the values of the round.
  static void expect_gathered(Communicator& group, base::Buffer& shared, int round, std::int64_t count) {
    Placed<float> sent(values(rank(), 0, round, count), device());
    group.all_gather(sent.data(), shared.data(), equal_counts(ranks(), count), DType::fp32).synchronize();
    for (int r = 0; r < ranks(); ++r)
      EXPECT_EQ(read(shared.data() + r * count * static_cast<std::int64_t>(sizeof(float)), count),
                values(r, 0, round, count));
  }
};

TEST_F(NcclPushes, GathersOfAllSizesArriveInSharedAndOtherMemory) {
  const auto group = make_whole_group(*world_of_tests(), ranks());
  const std::int64_t most = 3'000'000;
  base::Buffer shared(static_cast<std::size_t>(most * ranks()) * sizeof(float), device());
  base::Buffer other(shared.size(), device());
  EXPECT_EQ(group->share(all_of(shared)), "");
  std::mt19937 random(5);
  for (int round = 0; round < 40; ++round) {
    std::vector<std::int64_t> counts;
    for (int r = 0; r < ranks(); ++r) {
      const std::int64_t limit = round % 8 == 7 ? most : 5000;
      counts.push_back(round % 5 == 0 ? 1024 : static_cast<std::int64_t>(random() % static_cast<unsigned>(limit)));
    }
    if (round % 3 == 1) counts[static_cast<std::size_t>(round) % counts.size()] = 0;
    const std::int64_t own = counts[static_cast<std::size_t>(rank())];
    Placed<float> sent(values(rank(), 0, round, own), device());
    // In every third round some ranks receive into memory that is not shared.
    std::byte* target = (round + rank()) % 3 == 0 ? other.data() : shared.data();
    group->all_gather(sent.data(), target, counts, DType::fp32).synchronize();
    for (int r = 0; r < ranks(); ++r) {
      const std::int64_t count = counts[static_cast<std::size_t>(r)];
      EXPECT_EQ(read(target, count), values(r, 0, round, count)) << "round " << round << " from rank " << r;
      target += count * static_cast<std::int64_t>(sizeof(float));
    }
  }
  group->share({});
}

TEST_F(NcclPushes, MessagesInSeveralCopiesArriveWhole) {
  const auto group = make_whole_group(*world_of_tests(), ranks());
  constexpr std::int64_t count = 1'000'003;
  base::Buffer shared(static_cast<std::size_t>(count * ranks()) * sizeof(float), device());
  EXPECT_EQ(group->share(all_of(shared)), "");
  for (const std::size_t longest : {std::size_t{1} << 20, std::size_t{4000}, std::size_t{1} << 30}) {
    group->limit_copies(longest);
    const auto round = static_cast<int>(longest % 13);
    expect_gathered(*group, shared, round, count);
  }
  group->share({});
}

TEST_F(NcclPushes, ExchangesKeepTheOrderOfAPairsMessages) {
  const auto group = make_whole_group(*world_of_tests(), ranks());
  base::Buffer shared(std::size_t{64} << 20, device());
  EXPECT_EQ(group->share(all_of(shared)), "");
  constexpr int messages = 3;
  const auto count_of = [](int from, int to, int round, int message) {
    return std::int64_t{(from * 131 + to * 17 + round * 977 + message * 5) % 40 * 1000};
  };
  for (int round = 0; round < 20; ++round) {
    std::vector<Placed<float>> memory;
    memory.reserve(static_cast<std::size_t>(ranks() * messages));
    std::vector<Send> sends;
    std::vector<Receive> receives;
    std::byte* target = shared.data();
    for (int message = 0; message < messages; ++message)
      for (int peer = 0; peer < ranks(); ++peer) {
        const std::int64_t out = count_of(rank(), peer, round, message), in = count_of(peer, rank(), round, message);
        memory.emplace_back(values(rank(), peer, round + message, out), device());
        sends.push_back({peer, memory.back().data(), static_cast<std::size_t>(out) * sizeof(float)});
        receives.push_back({peer, target, static_cast<std::size_t>(in) * sizeof(float)});
        target += receives.back().bytes;
      }
    group->exchange(sends, receives).synchronize();
    std::size_t next = 0;
    for (int message = 0; message < messages; ++message)
      for (int peer = 0; peer < ranks(); ++peer, ++next) {
        const std::int64_t in = count_of(peer, rank(), round, message);
        EXPECT_EQ(read(static_cast<std::byte*>(receives[next].data), in), values(peer, rank(), round + message, in));
      }
  }
  group->share({});
}

TEST_F(NcclPushes, NewSharedMemoryReplacesTheOld) {
  const auto group = make_whole_group(*world_of_tests(), ranks());
  for (int round = 0; round < 6; ++round) {
    const std::int64_t count = 1000 << round;
    // In some rounds a rank shares nothing.
    base::Buffer shared(static_cast<std::size_t>(count * ranks()) * sizeof(float), device());
    const bool shares = (round + rank()) % 3 != 0;
    EXPECT_EQ(group->share(shares ? all_of(shared) : std::span<std::byte>()), "");
    expect_gathered(*group, shared, round, count);
    group->share({});
  }
}

// Rounds that the hosts only enqueue. All elements of round r are r mod 16. The sums of the received elements are exact
// in fp32, so an element of another round would change them. TESSERA_TEST_PUSH_ROUNDS sets the number of rounds.
class Rounds {
 public:
  Rounds(Communicator& group, base::Device device, std::int64_t count)
      : group_(group),
        count_(count),
        sent_(bytes(1), device),
        shared_(bytes(group.size()), device),
        sums_(bytes(group.size()), device) {
    sums_.fill_zero();
    EXPECT_EQ(group.share({shared_.data(), shared_.size()}), "");
  }
  ~Rounds() { group_.share({}); }
  void enqueue(int round) {
    const quant::Kernels& kernels = group_.kernels();
    group_.lane().run([&] { kernels.fill(sent_.data(), DType::fp32, round % 16, count_); });
    group_.all_gather(sent_.data(), shared_.data(), equal_counts(group_.size(), count_), DType::fp32);
    group_.lane().run([&] {
      const void* parts[] = {shared_.data()};
      kernels.ordered_sum(sums_.data(), DType::fp32, true, parts, DType::fp32, count_ * group_.size());
    });
  }
  // Checks the sum of each element over all rounds.
  void expect_sum(float expected) {
    group_.lane().record().synchronize();
    std::vector<float> sums(static_cast<std::size_t>(count_ * group_.size()));
    base::copy_bytes(sums.data(), sums_.data(), sums_.size());
    EXPECT_THAT(sums, testing::Each(expected));
  }

 private:
  std::size_t bytes(int parts) const { return static_cast<std::size_t>(count_ * parts) * sizeof(float); }
  Communicator& group_;
  const std::int64_t count_;
  base::Buffer sent_, shared_, sums_;
};

TEST_F(NcclPushes, ManyConsecutiveRoundsCarryTheirOwnValues) {
  const auto group = make_whole_group(*world_of_tests(), ranks());
  const char* wanted = std::getenv("TESSERA_TEST_PUSH_ROUNDS");
  const int many = wanted == nullptr ? 20000 : std::atoi(wanted);
  for (const auto& [count, total] :
       {std::pair{std::int64_t{16}, many}, {100'000, many / 10}, {4'000'000, many / 100}}) {
    Rounds rounds(*group, device(), count);
    float expected = 0;
    for (int round = 0; round < total; ++round) {
      rounds.enqueue(round);
      expected += static_cast<float>(round % 16);
      if (round % 500 == 499) group->lane().record().synchronize();
    }
    rounds.expect_sum(expected);
  }
}

TEST_F(NcclPushes, AGraphReplaysPushes) {
  const auto group = make_whole_group(*world_of_tests(), ranks());
  Rounds rounds(*group, device(), 250'000);
  rounds.enqueue(0);  // this call is outside of the graph, because the first use allocates memory
  group->lane().record().synchronize();
  Recorded graph(group->lane(), [&] {
    for (int round = 1; round <= 5; ++round) rounds.enqueue(round);
  });
  constexpr int replays = 200;
  for (int i = 0; i < replays; ++i) graph.launch();
  rounds.enqueue(7);  // this call is outside of the graph
  rounds.expect_sum(replays * (1 + 2 + 3 + 4 + 5) + 7);
}

TEST_F(NcclPushes, MismatchedSizesAreAnError) {
  const auto world = make_world({.timeout = milliseconds(4000)});
  const auto group = make_whole_group(*world, ranks());
  base::Buffer shared(1 << 20, device()), sent(1 << 20, device());
  group->share(all_of(shared));
  const auto counts = equal_counts(ranks(), rank() == 1 ? 10 : 20);
  try {
    group->all_gather(sent.data(), shared.data(), counts, DType::fp32).synchronize();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr(rank() == 1 ? "rank 1 sends 40 bytes to rank" : "all_gather #0"));
  }
}

// The device of rank 1 does not reach the operation in time, and the other ranks do not wait for it forever.
TEST_F(NcclPushes, AStoppedDeviceEndsInATimeLimit) {
  const auto world = make_world({.timeout = milliseconds(2000)});
  const auto group = make_whole_group(*world, ranks());
  base::Buffer shared(1 << 20, device()), sent(1 << 20, device());
  group->share(all_of(shared));
  if (rank() == 1) group->lane().delay(6);
  const base::Fence gathered = group->all_gather(sent.data(), shared.data(), equal_counts(ranks(), 100), DType::fp32);
  try {
    gathered.synchronize();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("all_gather #0 on test["));
  }
  if (rank() == 1) std::this_thread::sleep_for(milliseconds(5000));  // waits until the work of the stream has ended
}

// The host of rank 1 does not call the operation.
TEST_F(NcclPushes, AStoppedHostEndsInATimeLimit) {
  const auto world = make_world({.timeout = milliseconds(2000)});
  const auto group = make_whole_group(*world, ranks());
  base::Buffer shared(1 << 20, device()), sent(1 << 20, device());
  group->share(all_of(shared));
  if (rank() == 1) return std::this_thread::sleep_for(milliseconds(4000));
  try {
    group->all_gather(sent.data(), shared.data(), equal_counts(ranks(), 100), DType::fp32).synchronize();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("time limit"));
  }
}

}  // namespace
}  // namespace tessera::comm
