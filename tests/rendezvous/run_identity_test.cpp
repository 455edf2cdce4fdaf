// Tests that each run has its own keys in a store, and that the ranks of another run are refused.
#include "tessera/rendezvous/run_identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "tessera/base/error.h"

namespace tessera::rendezvous {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr milliseconds kJoinLimit{20'000}, kShort{20};

// Connects every rank of a run of `ranks` ranks to one store, and returns their stores.
std::vector<std::shared_ptr<Store>> join_all(const std::shared_ptr<Store>& store, Launch launch, int ranks) {
  launch.size = ranks;
  std::vector<std::shared_ptr<Store>> joined;
  for (launch.rank = 0; launch.rank < ranks; ++launch.rank) joined.push_back(join_run(store, launch, kJoinLimit));
  return joined;
}

auto refuses_and_names_the_port() {
  return ThrowsMessage<InputError>(HasSubstr("set MASTER_PORT to a free port, the same on all ranks of this run"));
}

TEST(RunIdentity, DrawnIdentitiesDiffer) {
  const std::string drawn = draw_identity();
  EXPECT_EQ(drawn.size(), 32u);
  EXPECT_EQ(drawn.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_NE(draw_identity(), drawn);
}

TEST(RunIdentity, TheRanksOfARunHaveTheSameKeys) {
  for (const char* run : {"", "job 7"}) {
    const auto store = make_memory_store();
    const auto ranks = join_all(store, {.run = run}, 3);
    ranks[0]->set("key", "value");
    for (const auto& rank : ranks) EXPECT_EQ(rank->find("key"), "value") << run;
    EXPECT_EQ(store->find("key"), std::nullopt);
  }
}

TEST(RunIdentity, RanksMayJoinBeforeRank0) {
  const auto store = make_memory_store();
  auto other = std::async(std::launch::async, [&] { return join_run(store, {.rank = 1, .size = 2}, kJoinLimit); });
  join_run(store, {.rank = 0, .size = 2}, kJoinLimit)->set("key", "value");
  EXPECT_EQ(other.get()->find("key"), "value");
}

TEST(RunIdentity, ARankOfAnotherRunIsRefused) {
  const auto store = make_memory_store();
  join_all(store, {.run = "job 7"}, 2);
  const auto join = [&](const std::string& run, int ranks) {
    return [=] { join_run(store, {.rank = 1, .size = ranks, .run = run}, kJoinLimit); };
  };
  EXPECT_THAT(join("job 7", 4), refuses_and_names_the_port());
  EXPECT_THAT(join("", 2), refuses_and_names_the_port());
  EXPECT_THAT(join("job 8", 2),
              ThrowsMessage<InputError>(
                  HasSubstr("store: 127.0.0.1:29500, rank 1: expected the run 'job 8 of 2 ranks', found the run "
                            "'job 7 of 2 ranks'")));
}

TEST(RunIdentity, RanksJoinAlthoughAnotherProgramHasChangedTheNameOfTheRun) {
  const auto store = make_memory_store();
  join_run(store, {.rank = 0, .size = 2, .run = "job 7"}, kJoinLimit)->set("key", "value");
  store->set("tessera run", "another");
  EXPECT_EQ(join_run(store, {.rank = 1, .size = 2, .run = "job 7"}, kJoinLimit)->find("key"), "value");
}

// Neither run has an identity of a launcher. The places of the first run are taken.
TEST(RunIdentity, ASecondProcessWithTheSameRankIsRefused) {
  const auto store = make_memory_store();
  join_all(store, {}, 3);
  for (int rank = 0; rank < 3; ++rank)
    EXPECT_THAT([&] { join_run(store, {.rank = rank, .size = 3}, kJoinLimit); }, refuses_and_names_the_port()) << rank;
}

// The store of torchrun's agent may serve several runs, and it survives restarts of the ranks.
TEST(RunIdentity, RunsAndAttemptsInTheStoreOfALauncherHaveTheirOwnKeys) {
  const auto store = make_memory_store();
  std::vector<std::shared_ptr<Store>> runs;
  for (const char* run : {"", "one", "two"})
    for (const int attempt : {0, 1})
      runs.push_back(join_all(store, {.hosts_store = true, .run = run, .attempt = attempt}, 2).back());
  for (const auto& run : runs) {
    EXPECT_EQ(run->find("key"), std::nullopt);
    run->set("key", "value");
  }
}

TEST(RunIdentity, TheErrorNamesRank0IfItDoesNotAnswer) {
  EXPECT_THAT([&] { join_run(make_memory_store(), {.rank = 1, .size = 2}, kShort); },
              ThrowsMessage<Error>(HasSubstr("rank 1: rank 0 did not name the run within 20 ms")));
}

// Values in the store are input from outside.
TEST(RunIdentity, ADamagedIdentityIsRefused) {
  for (const std::string& given : {std::string(), std::string("/"), std::string(31, 'a'), std::string(1 << 20, 'a')}) {
    const auto store = make_memory_store();
    join_run(store, {.rank = 0, .size = 2}, kJoinLimit);
    store->set("tessera identity for 1", given);
    try {
      join_run(store, {.rank = 1, .size = 2}, kJoinLimit);
      ADD_FAILURE() << "accepted " << given.size() << " bytes";
    } catch (const InputError& error) {
      EXPECT_LT(std::string_view(error.what()).size(), 1000u);
    }
  }
}

}  // namespace
}  // namespace tessera::rendezvous
