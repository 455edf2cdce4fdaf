// Tests which ranks hang, given what each rank reports.
#include "tessera/rendezvous/states/hung_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

namespace tessera::rendezvous {
namespace {

using ::testing::HasSubstr;
using Ranks = std::vector<int>;

RankReport report_of(RankState state, bool answers = true) {
  state.host = "node", state.process = 70 + state.rank, state.step = 9, state.phase = "training", state.seconds = 61.2;
  return {.state = state, .answers = answers};
}
RankReport timed_out(int rank, Ranks waits_for) {
  return report_of({.rank = rank, .waits = true, .waits_for = std::move(waits_for), .timed_out = true});
}
RankReport waiting(int rank, Ranks waits_for) {
  return report_of({.rank = rank, .waits = true, .waits_for = std::move(waits_for)});
}
RankReport busy(int rank) {
  return report_of({.rank = rank});
}
// Its last state says that it waits, but it has stopped since then.
RankReport silent(int rank, Ranks waits_for = {}) {
  return report_of({.rank = rank, .waits = !waits_for.empty(), .waits_for = std::move(waits_for)}, false);
}

TEST(HungRanks, AreThoseThatWaitForNoRank) {
  EXPECT_EQ(hung_ranks({timed_out(0, {2}), timed_out(1, {0}), silent(2), timed_out(3, {1, 2})}), Ranks{2});
  EXPECT_EQ(hung_ranks({silent(0, {1}), timed_out(1, {0}), timed_out(2, {1})}), Ranks{0});
  // It hangs in work of its own.
  EXPECT_EQ(hung_ranks({timed_out(0, {1}), busy(1), waiting(2, {0})}), Ranks{1});
  // The first rank to report waits for a rank that waits for another one.
  EXPECT_EQ(hung_ranks({timed_out(0, {1}), waiting(1, {3}), busy(2), busy(3)}), Ranks{3});
}

TEST(HungRanks, MayBeSeveral) {
  EXPECT_EQ(hung_ranks({timed_out(0, {3}), silent(1), timed_out(2, {1, 3}), silent(3)}), (Ranks{1, 3}));
  // Rank 0 may still work, but rank 2 has stopped.
  EXPECT_EQ(hung_ranks({busy(0), timed_out(1, {0, 2}), silent(2)}), Ranks{2});
}

// No rank waits for rank 3, which may be in another group.
TEST(HungRanks, AreRanksForWhichOthersWait) {
  EXPECT_EQ(hung_ranks({timed_out(0, {1}), busy(1), waiting(2, {3}), silent(3)}), Ranks{1});
}

TEST(HungRanks, AreNotFoundInACycle) {
  const std::vector<RankReport> cycle{timed_out(0, {1}), timed_out(1, {2}), timed_out(2, {0}), busy(3)};
  EXPECT_EQ(hung_ranks(cycle), Ranks());
  EXPECT_THAT(hung_text(cycle, {}, 5000), HasSubstr("the ranks wait for each other until the time limit of 5000 ms"));
  EXPECT_THAT(hung_text(cycle, {}, 5000), HasSubstr("rank 1 (host node, process 71) runs: step 9"));
  EXPECT_EQ(hung_ranks({busy(0), busy(1)}), Ranks());
  EXPECT_EQ(hung_ranks({}), Ranks());
}

TEST(HungRanks, AreFoundWhereWaitingRanksDoNotSayForWhom) {
  EXPECT_EQ(hung_ranks({timed_out(0, {}), waiting(1, {}), busy(2)}), Ranks{2});
  EXPECT_EQ(hung_ranks({timed_out(0, {}), RankReport(), busy(2)}), Ranks{1});  // rank 1 has never sent its state
}

TEST(HungRanks, AreNamedInOneLine) {
  EXPECT_EQ(hung_text({timed_out(0, {2}), timed_out(1, {2}), silent(2)}, {2}, 60000),
            "tessera: rank 2 hangs: ranks 0,1 waited until the time limit of 60000 ms (--timeout-s); rank 2 (host "
            "node, process 72) does not answer; its last report: step 9, training for 61 s\n");
  EXPECT_EQ(hung_text({timed_out(0, {1, 2}), RankReport(), silent(2)}, {1, 2}, 60000),
            "tessera: ranks 1,2 hang: rank 0 waited until the time limit of 60000 ms (--timeout-s); rank 1 does not "
            "answer; rank 2 (host node, process 72) does not answer; its last report: step 9, training for 61 s\n");
}

TEST(RankState, IsReadFromItsLine) {
  const RankState state{.rank = 3,
                        .host = "a",
                        .process = 5,
                        .step = 7,
                        .phase = "save",
                        .seconds = 1.5,
                        .operation = "barrier #2 on world[0-3], rank 3",
                        .waits = true,
                        .waits_for = {0, 1},
                        .timed_out = true,
                        .table_requests = 2};
  EXPECT_EQ(parse_state(to_line(state)), state);
  EXPECT_EQ(to_line(state).find('\n'), std::string::npos);
  EXPECT_EQ(state_text(state), "step 7, save for 2 s, last barrier #2 on world[0-3], rank 3, waits for ranks 0,1");
  for (const char* text : {"", "{}", "[1]", "x", R"({"rank": "a"})"}) EXPECT_EQ(parse_state(text), std::nullopt);
}

TEST(RankState, IsNotedInTheProcess) {
  note_phase(4, 8, "evaluation");
  note_operation(4, "all_gather", true, {1});
  note_time_limit(4);
  accept_table_requests();
  const std::int64_t before = table_requests();
  std::raise(SIGUSR2);
  const std::vector<RankState> states = own_states();
  ASSERT_EQ(states.size(), 1u);
  EXPECT_EQ(states[0].step, 8);
  EXPECT_EQ(states[0].phase, "evaluation");
  EXPECT_EQ(states[0].waits_for, Ranks{1});
  EXPECT_TRUE(states[0].timed_out);
  EXPECT_EQ(states[0].table_requests, before + 1);
  note_phase(4, 9, "training");
  EXPECT_EQ(own_states()[0].operation, "all_gather");
}

}  // namespace
}  // namespace tessera::rendezvous
