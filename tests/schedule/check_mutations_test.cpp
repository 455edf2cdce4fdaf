// Compares the checker with an oracle on small schedules. The checker must refuse a schedule that is wrong in some
// order of the lanes.
#include <gtest/gtest.h>

#include <array>
#include <iostream>

#include "tessera/schedule/check/check.h"
#include "tessera/schedule/plan/plan.h"
#include "tests/schedule/oracle.h"
#include "tests/schedule/oracle_cases.h"

namespace tessera::schedule {
namespace {

constexpr std::size_t kMaxStates = 20000;

std::string first_of(const std::vector<std::string>& faults) {
  return faults.empty() ? "" : faults.front();
}

struct Tally {
  int made = 0, wrong = 0, refused = 0;
};

// Compares the checker and the oracle on every mutation of one schedule.
void compare_mutations(const oracle::Case& made, const Schedule& schedule, std::mt19937_64& random,
                       std::array<Tally, oracle::kMutations>& tallies) {
  for (int kind = 0; kind < oracle::kMutations; ++kind) {
    const auto mutation = static_cast<oracle::Mutation>(kind);
    const auto mutated = oracle::mutate(made, schedule, mutation, random);
    if (!mutated) continue;
    Tally& tally = tallies[static_cast<std::size_t>(kind)];
    const std::vector<std::string> faults = check(made.trace, made.sizes, *mutated);
    const oracle::Outcome truth = oracle::execute(made.trace, made.sizes, *mutated, kMaxStates, random());
    ++tally.made;
    tally.refused += !faults.empty();
    tally.wrong += !truth.wrong.empty();
    EXPECT_TRUE(truth.wrong.empty() || !faults.empty())
        << made.name << ", " << name_of(mutation) << ": accepted, but " << truth.wrong;
  }
}

// The checker and the oracle accept the schedules without mutations.
std::array<Tally, oracle::kMutations> compare_all(const std::vector<oracle::Case>& cases, auto make_schedule,
                                                  int rounds) {
  std::array<Tally, oracle::kMutations> tallies{};
  std::mt19937_64 random(7);
  int accepted = 0, exhaustive = 0;
  std::size_t most = 0;
  for (const oracle::Case& made : cases)
    for (int round = 0; round < rounds; ++round) {
      const Schedule schedule = make_schedule(made, random);
      const oracle::Outcome truth = oracle::execute(made.trace, made.sizes, schedule, kMaxStates, random());
      EXPECT_EQ(truth.wrong, "") << made.name;
      const std::vector<std::string> faults = check(made.trace, made.sizes, schedule);
      EXPECT_EQ(first_of(faults), "") << made.name;
      accepted += faults.empty();
      exhaustive += truth.exhaustive;
      most = std::max(most, truth.states);
      compare_mutations(made, schedule, random, tallies);
    }
  std::cout << accepted << " schedules accepted, " << exhaustive << " of them over every order (at most " << most
            << " states)\n";
  for (int kind = 0; kind < oracle::kMutations; ++kind) {
    const Tally& tally = tallies[static_cast<std::size_t>(kind)];
    const std::string name = name_of(static_cast<oracle::Mutation>(kind));
    std::cout << "  " << name << ": " << tally.made << " made, " << tally.wrong << " wrong, " << tally.refused
              << " refused\n";
  }
  return tallies;
}

TEST(CheckMutations, RefusesRandomSchedulesThatSomeOrderBreaks) {
  const auto tallies = compare_all(
      oracle::cases(),
      [](const oracle::Case& made, std::mt19937_64& random) { return oracle::random_schedule(made, random); }, 20);
  for (int kind = 0; kind < oracle::kMutations; ++kind) {
    const auto mutation = static_cast<oracle::Mutation>(kind);
    const Tally& tally = tallies[static_cast<std::size_t>(kind)];
    if (mutation != oracle::Mutation::repeat_copy) {
      EXPECT_GT(tally.wrong, 0) << name_of(mutation);
      continue;
    }
    // A copy that is made twice has the right bytes, and costs time.
    EXPECT_GT(tally.made, 0);
    EXPECT_EQ(tally.refused, tally.made);
  }
}

TEST(CheckMutations, RefusesPlannedSchedulesThatSomeOrderBreaks) {
  compare_all(
      oracle::cases(),
      [](const oracle::Case& made, std::mt19937_64& random) {
        return plan(made.trace, made.sizes,
                    {.gather_budget = random() % 2 ? kMinimum : kUnlimited,
                     .reduce_budget = random() % 2 ? kMinimum : kUnlimited,
                     .coalesce_bytes = random() % 2 ? 4 : 0});
      },
      4);
}

TEST(CheckMutations, RefusesSchedulesOfSeveralDomainsThatSomeOrderBreaks) {
  const auto random_ones = [](const oracle::Case& made, std::mt19937_64& random) {
    return oracle::random_schedule(made, random);
  };
  const auto planned = [](const oracle::Case& made, std::mt19937_64& random) {
    const Schedule least = plan(made.trace, made.sizes, {.gather_budget = kMinimum, .reduce_budget = kMinimum});
    return plan(made.trace, made.sizes,
                {.gather_budget = least.gather_arena + static_cast<std::int64_t>(random() % 8),
                 .reduce_budget = random() % 2 ? kMinimum : kUnlimited,
                 .coalesce_bytes = random() % 2 ? 4 : 0});
  };
  const auto tallies = compare_all(oracle::cases_of_domains(), random_ones, 12);
  for (const auto mutation : {oracle::Mutation::shorten_wait_for_free, oracle::Mutation::lose_scratch_wait,
                              oracle::Mutation::reuse_scratch_early, oracle::Mutation::finish_later})
    EXPECT_GT(tallies[static_cast<std::size_t>(mutation)].wrong, 0) << name_of(mutation);
  compare_all(oracle::cases_of_domains(), planned, 12);
}

}  // namespace
}  // namespace tessera::schedule
