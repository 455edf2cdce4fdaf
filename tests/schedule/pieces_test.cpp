// The checker on transfers in pieces. Each damage to a correct step breaks one rule and must be refused. An oracle
// executes the damaged steps (piece_steps.h): the checker must refuse each step that has a wrong result.
#include "tessera/schedule/check/pieces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <iostream>
#include <random>

#include "tessera/schedule/check/together.h"
#include "tests/schedule/piece_steps.h"

namespace tessera::schedule {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr auto kForward = Pass::forward, kBackward = Pass::backward;

std::vector<std::string> faults_of(const Trace& trace) {
  const std::vector<ParameterSize> sizes;
  const Schedule schedule;
  CheckFaults faults(trace, sizes, schedule);
  check_pieces(trace, faults);
  return faults.take();
}

// One pair of layers over 3 ranks. Weight 0 belongs to the column layer, weight 1 to the row layer.
Trace small_step() {
  return piece_steps::step(/*ranks=*/3, /*layers=*/1, /*microbatches=*/1);
}

// Returns the index of the event. `op` is empty for events of weights.
std::size_t find(const Trace& trace, EventKind kind, Pass pass, ParameterId weight, const std::string& op = "") {
  const auto found = std::ranges::find_if(trace, [&](const Event& event) {
    return event.kind == kind && event.pass == pass && event.parameter == weight && (op.empty() || event.op == op);
  });
  EXPECT_NE(found, trace.end()) << op;
  return static_cast<std::size_t>(found - trace.begin());
}

// Moves an event to `to`, the index that the event has afterwards.
void move_event(Trace& trace, std::size_t from, std::size_t to) {
  const Event event = trace[from];
  trace.erase(trace.begin() + static_cast<std::ptrdiff_t>(from));
  trace.insert(trace.begin() + static_cast<std::ptrdiff_t>(to), event);
}

TEST(Pieces, InOrderAreAccepted) {
  EXPECT_THAT(faults_of({}), IsEmpty());
  for (const int ranks : {1, 2, 3, 4}) EXPECT_THAT(faults_of(piece_steps::step(ranks, 3, 2)), IsEmpty()) << ranks;
}

TEST(Pieces, EveryDroppedEventOfAPieceIsRefused) {
  const Trace all = small_step();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].kind != EventKind::comm && all[i].kind != EventKind::need && all[i].kind != EventKind::sum) continue;
    Trace trace = all;
    trace.erase(trace.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_FALSE(faults_of(trace).empty()) << to_string(all[i]);
  }
}

TEST(Pieces, ANeedBeforeItsPieceIsRefused) {
  Trace trace = small_step();
  move_event(trace, find(trace, EventKind::need, kForward, 1, "scatter piece 2"), 0);
  EXPECT_THAT(faults_of(trace), Contains(HasSubstr("expected a piece that has begun before")));
}

TEST(Pieces, SwappedPiecesAreRefused) {
  for (const auto& [pass, weight, transfer] : {std::tuple{kForward, 0, kGather},
                                               {kForward, 1, kScatter},
                                               {kBackward, 1, kGather},
                                               {kBackward, 0, kWgradGather}}) {
    Trace trace = small_step();
    std::swap(trace[find(trace, EventKind::comm, pass, weight, piece_op(transfer, 1))],
              trace[find(trace, EventKind::comm, pass, weight, piece_op(transfer, 2))]);
    EXPECT_THAT(faults_of(trace), Contains(HasSubstr("expected piece 1 of the transfer"))) << transfer;
  }
}

TEST(Pieces, ANeedInAnotherMicrobatchIsRefused) {
  Trace trace = small_step();
  const std::size_t need = find(trace, EventKind::need, kBackward, 0, "scatter piece 2");
  trace[need].microbatch = 1;
  move_event(trace, need, trace.size() - 1);
  EXPECT_THAT(faults_of(trace), Contains(HasSubstr("expected a need event in the same microbatch")));
}

TEST(Pieces, APieceThatIsBegunBeforeItsProductIsRefused) {
  for (const auto& [pass, weight] : {std::pair{kForward, 1}, {kBackward, 0}}) {
    Trace trace = small_step();
    move_event(trace, find(trace, EventKind::comm, pass, weight, "scatter piece 1"),
               find(trace, EventKind::consume, pass, weight));
    EXPECT_THAT(faults_of(trace), ElementsAre(HasSubstr("expected the consume event of the weight before")));
  }
}

TEST(Pieces, AGatherThatIsBegunBeforeAnEarlierSumIsRefused) {
  Trace trace = small_step();
  const std::size_t sum = find(trace, EventKind::sum, kForward, 1);
  for (const char* piece : {"gather piece 2", "gather piece 1"})
    move_event(trace, find(trace, EventKind::comm, kBackward, 1, piece), sum);
  EXPECT_THAT(faults_of(trace), Contains(HasSubstr("expected the sum of event")));
}

TEST(Pieces, ANeedBehindTheProductThatReadsThePieceIsRefused) {
  for (const auto& [weight, pass, transfer, reader] : {std::tuple{0, kForward, kGather, EventKind::release},
                                                       {1, kBackward, kGather, EventKind::release},
                                                       {0, kBackward, kWgradGather, EventKind::produce}}) {
    Trace trace = small_step();
    move_event(trace, find(trace, EventKind::need, pass, weight, piece_op(transfer, 2)),
               find(trace, reader, pass, weight));
    EXPECT_THAT(faults_of(trace), ElementsAre(HasSubstr("because the product reads the tokens"))) << transfer;
  }
}

TEST(Pieces, ANeedBehindTheSumIsRefused) {
  Trace trace = small_step();
  move_event(trace, find(trace, EventKind::need, kForward, 1, "scatter piece 2"),
             find(trace, EventKind::sum, kForward, 1));
  EXPECT_THAT(faults_of(trace), ElementsAre(HasSubstr("expected the need events of 2 pieces before, got 1")));
}

TEST(Pieces, AnotherOrderOfASumIsRefused) {
  for (const char* order : {"ranks 0 2 1", "ranks 1 0 2", "ranks 0 1", "ranks 0 1 2 2"}) {
    Trace trace = small_step();
    trace[find(trace, EventKind::sum, kBackward, 0)].op = order;
    EXPECT_THAT(faults_of(trace), ElementsAre(HasSubstr("expected the order 'ranks 0 1 2'"))) << order;
  }
}

// The gather and the scatter of the column layer's backward pass are in flight together.
TEST(Pieces, ARangeOfTheTransferArenaThatIsReusedEarlyIsRefused) {
  Trace trace = small_step();
  const std::int64_t gathered = trace[find(trace, EventKind::need, kBackward, 0, "gather for wgrad piece 1")].offset;
  Event& need = trace[find(trace, EventKind::need, kBackward, 0, "scatter piece 1")];
  EXPECT_EQ(need.offset, gathered + 3 * piece_steps::kPart);
  need.offset -= 1;
  EXPECT_THAT(faults_of(trace), ElementsAre(HasSubstr("of the transfer arena, but event")));
}

TEST(Pieces, PartsOfASumInOneRangeAreRefused) {
  Trace trace = small_step();
  trace[find(trace, EventKind::need, kForward, 1, "scatter piece 2")].offset =
      trace[find(trace, EventKind::need, kForward, 1, "scatter piece 1")].offset;
  EXPECT_THAT(faults_of(trace), ElementsAre(HasSubstr("of the transfer arena, but event")));
}

TEST(Pieces, OnOneRankInAnotherOrderAreNamedTogether) {
  const Trace right = small_step();
  Trace reversed = right;
  std::swap(reversed[find(reversed, EventKind::comm, kForward, 1, "scatter piece 1")],
            reversed[find(reversed, EventKind::comm, kForward, 1, "scatter piece 2")]);
  RankOrders orders{.communicators = {{.name = "tp", .ranks = {0, 1, 2}}}};
  for (const Trace& trace : {right, reversed}) {
    Schedule schedule;
    schedule.body = schedule.events = static_cast<int>(trace.size());
    orders.orders.push_back(call_order(trace, std::vector<ParameterSize>(2), schedule));
  }
  for (const int rank : {0, 1, 2}) {
    orders.ranks.push_back({.order = rank == 1 ? 1 : 0});
    orders.ranks.back().communicators.assign(orders.orders.front().roles.size(), 0);
  }
  EXPECT_THAT(check_together(orders), Contains(HasSubstr("scatter piece 2")));
}

// A damage to a random event. Returns false if the step has no event to which the damage applies.
using Damage = bool (*)(Trace& trace, std::mt19937_64& random);

std::size_t below(std::mt19937_64& random, std::size_t count) {
  return static_cast<std::size_t>(random() % count);
}
std::size_t random_event(const Trace& trace, EventKind kind, std::mt19937_64& random) {
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < trace.size(); ++i)
    if (trace[i].kind == kind) found.push_back(i);
  return found[below(random, found.size())];
}
// Moves an event by 1 to 8 places within its microbatch.
bool move_randomly(Trace& trace, EventKind kind, bool earlier, std::mt19937_64& random) {
  const std::size_t from = random_event(trace, kind, random), distance = 1 + below(random, 8);
  if (earlier ? from < distance : from + distance >= trace.size()) return false;
  const std::size_t to = earlier ? from - distance : from + distance;
  if (trace[to].microbatch != trace[from].microbatch) return false;
  move_event(trace, from, to);
  return true;
}

const std::pair<const char*, Damage> kDamages[] = {
    {"begin earlier", [](Trace& t, std::mt19937_64& r) { return move_randomly(t, EventKind::comm, true, r); }},
    {"begin later", [](Trace& t, std::mt19937_64& r) { return move_randomly(t, EventKind::comm, false, r); }},
    {"need later", [](Trace& t, std::mt19937_64& r) { return move_randomly(t, EventKind::need, false, r); }},
    {"need earlier", [](Trace& t, std::mt19937_64& r) { return move_randomly(t, EventKind::need, true, r); }},
    {"sum earlier", [](Trace& t, std::mt19937_64& r) { return move_randomly(t, EventKind::sum, true, r); }},
    {"need dropped",
     [](Trace& t, std::mt19937_64& r) {
       t.erase(t.begin() + static_cast<std::ptrdiff_t>(random_event(t, EventKind::need, r)));
       return true;
     }},
    {"order of a sum",
     [](Trace& t, std::mt19937_64& r) {
       Event& sum = t[random_event(t, EventKind::sum, r)];
       std::swap(sum.op[sum.op.size() - 1], sum.op[sum.op.size() - 3]);
       return true;
     }},
    {"range reused",
     [](Trace& t, std::mt19937_64& r) {
       const Event changed = t[random_event(t, EventKind::need, r)], other = t[random_event(t, EventKind::need, r)];
       const std::int64_t by = other.offset - changed.offset;
       const std::string transfer = changed.op.substr(0, changed.op.find(" piece "));
       for (Event& event : t)
         if (event.kind == EventKind::need && event.microbatch == changed.microbatch && event.pass == changed.pass &&
             event.parameter == changed.parameter && event.op.starts_with(transfer + " piece "))
           event.offset += by;
       return by != 0;
     }},
};

TEST(PieceMutations, ThatHaveAWrongResultAreRefused) {
  constexpr int kRounds = 40;
  constexpr std::uint64_t kExecutions = 8;
  std::mt19937_64 random(11);
  for (const auto& [name, damage] : kDamages) {
    int made = 0, wrong = 0, refused = 0;
    for (int round = 0; round < kRounds; ++round) {
      const int ranks = 2 + static_cast<int>(below(random, 3));
      const Trace right = piece_steps::step(ranks, 2, 2);
      Trace damaged = right;
      if (!damage(damaged, random)) continue;
      std::string result;
      for (std::uint64_t seed = 0; seed < kExecutions && result.empty(); ++seed)
        result = piece_steps::wrong_result(damaged, right, ranks, seed);
      const bool is_refused = !faults_of(damaged).empty();
      ++made, wrong += result.empty() ? 0 : 1, refused += is_refused ? 1 : 0;
      EXPECT_TRUE(result.empty() || is_refused) << name << ": accepted, but " << result;
    }
    std::cout << "  " << name << ": " << made << " made, " << wrong << " wrong, " << refused << " refused\n";
    EXPECT_GT(wrong, 0) << name;
  }
}

TEST(PieceMutations, TheStepsBeforeHaveTheRightResult) {
  for (const int ranks : {2, 3, 4})
    for (std::uint64_t seed = 0; seed < 12; ++seed) {
      const Trace step = piece_steps::step(ranks, 2, 2);
      EXPECT_EQ(piece_steps::wrong_result(step, step, ranks, seed), "");
    }
}

}  // namespace
}  // namespace tessera::schedule
