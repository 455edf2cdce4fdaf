#include "tessera/data/blend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "tests/base/files.h"

namespace tessera::data {
namespace {
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string turns(const BlendOrder& order, int count) {
  std::string text;
  for (int p = 0; p < count; ++p) text += static_cast<char>('a' + order.at(p).set);
  return text;
}

TEST(Blend, OneSetHasEveryTurn) {
  const BlendOrder order({3.25});
  EXPECT_EQ(order.period(), 1);
  for (const std::int64_t p : {std::int64_t{0}, std::int64_t{7}, std::int64_t{1} << 60})
    EXPECT_EQ(order.at(p).index, p);
}

TEST(Blend, FollowsTheLargestDeficit) {
  // By hand: at position 4, for example, the deficits are 25 - 20, 15 - 10 and 10 - 10, so the turn goes to a, the
  // first of the equal ones.
  const BlendOrder order({0.5, 0.3, 0.2});
  EXPECT_THAT(order.shares(), ElementsAre(5, 3, 2));
  EXPECT_EQ(turns(order, 20), "abcaabacbaabcaabacba");
  EXPECT_EQ(turns(BlendOrder({1, 1}), 6), "ababab");
  EXPECT_EQ(turns(BlendOrder({2, 1}), 6), "abaaba");
}

TEST(Blend, SharesAreExactForDecimals) {
  EXPECT_THAT(BlendOrder({30, 70}).shares(), ElementsAre(3, 7));
  EXPECT_THAT(BlendOrder({0.0001, 0.9999}).shares(), ElementsAre(1, 9999));
  EXPECT_THAT(BlendOrder({1e9, 3e9}).shares(), ElementsAre(1, 3));
}

TEST(Blend, EveryShortPeriodHasTheSharesAndCountsContinue) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 40; ++round) {
    std::vector<double> weights(1 + random() % 6);
    for (double& weight : weights)
      weight =
          round % 2 ? static_cast<double>(1 + random() % 50) : std::exp(static_cast<double>(random() % 1000) / 100 - 5);
    const BlendOrder order = BlendOrder::from_shares(coarse_shares(weights));
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    EXPECT_EQ(std::accumulate(order.shares().begin(), order.shares().end(), std::int64_t{0}), order.period());
    std::vector<std::int64_t> taken(weights.size());
    const std::int64_t positions = 2 * order.period() + 7;
    for (std::int64_t p = 0; p < positions; ++p) {
      const auto turn = order.at(p);
      ASSERT_EQ(turn.index, taken[static_cast<std::size_t>(turn.set)]++);
      if (p + 1 == order.period()) {
        ASSERT_EQ(taken, order.shares());
      }
    }
    for (std::size_t i = 0; i < weights.size(); ++i) {
      // Rounding to 1/65536 changes a share by less than 1/65536. Each set whose small share was raised to 1 changes it
      // by as much again.
      const double bound = static_cast<double>(1 + weights.size()) / 65536;
      EXPECT_NEAR(static_cast<double>(order.shares()[i]) / static_cast<double>(order.period()), weights[i] / sum,
                  bound);
    }
  }
}

// Shares and a hash of the turns, from the program version before shares were within 1/1000 of the weights.
struct Golden {
  std::vector<double> weights;
  std::vector<std::int64_t> shares;
  std::uint64_t hash;
};

const std::vector<Golden>& goldens() {
  static const std::vector<Golden> all{
      {{0.5, 0.3, 0.2}, {5, 3, 2}, 0x3934e56bb3b0a190u},
      {{30, 70}, {3, 7}, 0xd2562dbefef4172u},
      {{0.0001, 0.9999}, {1, 9999}, 0x8300ed4b3ecaefe3u},
      {{1e9, 3e9}, {1, 3}, 0x4b597bae96f373b7u},
      {{0.123456, 0.876544}, {8091, 57445}, 0xb20d66c3d76e4ca3u},
      {{3.14159265, 2.71828183, 1.41421356}, {28304, 24491, 12741}, 0xb7d09b23ee298de9u},
      {{1, 65535}, {1, 65535}, 0x50e1a6ecc5713783u},
      {{1, 6, 7, 1.0 / 3, 11.5}, {2537, 15221, 17758, 846, 29174}, 0xbdd72256c82546d5u},
      {{0.1, 0.2, 0.3, 0.4}, {1, 2, 3, 4}, 0xe9ab70428faa4eefu},
      {{1.0 / 3, 1.0 / 3, 1.0 / 3}, {21846, 21845, 21845}, 0xc44d3dd8b3b849c3u},
      {{12345.678, 54321.9, 777.25}, {11996, 52785, 755}, 0x77ee1334bb1db514u},
  };
  return all;
}

std::uint64_t hash_of_turns(const BlendOrder& order) {  // FNV-1a
  std::uint64_t hash = 1469598103934665603u;
  for (std::int64_t p = 0; p < 3 * order.period() + 1000; ++p) {
    const auto turn = order.at(p);
    hash = (hash ^ static_cast<std::uint64_t>(turn.set * 1000003 + turn.index)) * 1099511628211u;
  }
  return hash;
}

TEST(Blend, SharesNearTheWeightsKeepTheirOrderOfSamples) {
  for (const Golden& golden : goldens()) {
    const BlendOrder order(golden.weights);
    EXPECT_EQ(order.shares(), golden.shares);
    EXPECT_EQ(hash_of_turns(order), golden.hash) << golden.weights[0];
    EXPECT_EQ(hash_of_turns(BlendOrder::from_shares(golden.shares)), golden.hash);
  }
}

TEST(Blend, SharesOfOlderCheckpointsKeepTheirOrderOfSamples) {
  for (const std::vector<double>& weights : {std::vector<double>{1e-9, 1}, {1, 999999}, {5e6, 1.2e12}}) {
    EXPECT_THAT(coarse_shares(weights), ElementsAre(1, 65535));
    EXPECT_EQ(hash_of_turns(BlendOrder::from_shares(coarse_shares(weights))), 0x50e1a6ecc5713783u);
  }
  const std::vector<std::int64_t> three = coarse_shares({1e-9, 1.0, 1.0 / 3});
  EXPECT_THAT(three, ElementsAre(1, 49151, 16384));
  EXPECT_EQ(hash_of_turns(BlendOrder::from_shares(three)), 0x7c8ccd22c6835a27u);
}

TEST(Blend, SmallSharesAreExact) {
  EXPECT_THAT(BlendOrder({1e-9, 1}).shares(), ElementsAre(1, 1000000000));
  EXPECT_THAT(BlendOrder({1, 999999}).shares(), ElementsAre(1, 999999));
  EXPECT_THAT(BlendOrder({5e6, 1.2e12}).shares(), ElementsAre(1, 240000));
  EXPECT_THAT(BlendOrder({1e6, 2e10}).shares(), ElementsAre(1, 20000));
}

double largest_error(const std::vector<std::int64_t>& shares, const std::vector<double>& weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  const auto period = static_cast<double>(std::accumulate(shares.begin(), shares.end(), std::int64_t{0}));
  double largest = 0;
  for (std::size_t i = 0; i < weights.size(); ++i)
    largest = std::max(largest, std::abs(static_cast<double>(shares[i]) / period / (weights[i] / sum) - 1));
  return largest;
}

TEST(Blend, EveryShareIsNearItsWeightOrTheErrorNamesTheWeight) {
  std::mt19937_64 random(11);
  int refused = 0, long_periods = 0;
  for (int round = 0; round < 300; ++round) {
    std::vector<double> weights(2 + random() % 8);
    for (double& weight : weights) weight = std::exp(static_cast<double>(random() % 36000) / 1000 - 18);
    const double smallest = *std::min_element(weights.begin(), weights.end());
    try {
      const BlendOrder order(weights, "--data");
      EXPECT_LT(largest_error(order.shares(), weights), 1e-3);
      long_periods += order.period() > 65536;
    } catch (const InputError& error) {
      ++refused;
      EXPECT_LT(smallest / std::accumulate(weights.begin(), weights.end(), 0.0), 4.5e-13);
      EXPECT_THAT(error.what(), HasSubstr("--data: weight "));
    }
  }
  EXPECT_GT(refused, 10);
  EXPECT_GT(long_periods, 50);
  EXPECT_THAT(base::refusal([] {
                BlendOrder({1.0 / 3 * 1e-20, 1}, "--data");
              }),
              HasSubstr("--data: weight 3.333333333333333e-21 is 3.33e-21 of the sum"));
  EXPECT_THAT(base::refusal([] {
                BlendOrder({1e308, 1e-308, 1e308}, "--valid");
              }),
              HasSubstr("--valid: weight 1e-308"));
}

// If the period is even, both deficits are equal once in a period.
TEST(Blend, TwoSetsOfALongPeriodFollowTheLargestDeficit) {
  for (const auto& shares : std::vector<std::vector<std::int64_t>>{{3, 100004}, {1, 99999}, {99999, 1}}) {
    const BlendOrder order = BlendOrder::from_shares(shares);
    ASSERT_EQ(order.period(), shares[0] + shares[1]);
    std::vector<std::int64_t> taken(2);
    for (std::int64_t p = 0; p < 2 * order.period() + 9; ++p) {
      const std::int64_t in_period = p + 1;
      const bool second =
          shares[1] * in_period - taken[1] * order.period() > shares[0] * in_period - taken[0] * order.period();
      const auto turn = order.at(p);
      ASSERT_EQ(turn.set, second ? 1 : 0) << p << " of " << shares[0] << " and " << shares[1];
      ASSERT_EQ(turn.index, taken[static_cast<std::size_t>(turn.set)]++) << p;
    }
  }
}

// Each halving deviates by at most half a turn from its share, so a set of n deviates by at most (1 + ceil(log2 n)) / 2
// turns.
TEST(Blend, SetsOfALongPeriodStayNearTheirShare) {
  const std::vector<std::int64_t> shares{7, 50000, 1, 30001, 12345, 2, 90001};
  const BlendOrder order = BlendOrder::from_shares(shares);
  std::vector<std::int64_t> taken(shares.size());
  for (std::int64_t p = 0; p < order.period() + 1000; ++p) {
    const auto turn = order.at(p);
    ASSERT_EQ(turn.index, taken[static_cast<std::size_t>(turn.set)]++) << p;
    for (std::size_t i = 0; i < shares.size(); ++i) {
      const double part =
          static_cast<double>(shares[i]) * static_cast<double>(p + 1) / static_cast<double>(order.period());
      ASSERT_LE(std::abs(static_cast<double>(taken[i]) - part), 2.0) << p << " set " << i;
    }
    if (p + 1 == order.period()) {
      ASSERT_EQ(taken, shares);
    }
  }
}

TEST(Blend, PositionsOfTheLongestPeriodAreFound) {
  const BlendOrder order({1e-9, 1.0, 1.0 / 3});
  const std::int64_t period = order.period();
  for (const std::int64_t start :
       {std::int64_t{0}, period - 5, period * 3 - 5, (std::int64_t{1} << 60) / period * period})
    for (std::int64_t p = start; p < start + 10; ++p) {
      const auto turn = order.at(p), again = order.at(p + period);
      EXPECT_EQ(again.set, turn.set);
      EXPECT_EQ(again.index - turn.index, order.shares()[static_cast<std::size_t>(turn.set)]);
    }
  // A billionth of 4/3: the first turn of the rare set comes after about half of 1.33e9.
  EXPECT_THAT(turns(order, 200), ::testing::Not(HasSubstr("a")));
}

TEST(Blend, ParsesPrefixesAndWeights) {
  EXPECT_EQ(parse_blend({"p"}, "--data").front().prefix, "p");
  EXPECT_EQ(parse_blend({"p"}, "--data").front().weight, 1.0);
  const auto sets = parse_blend({"0.3", "a", "2", "b"}, "--data");
  ASSERT_EQ(sets.size(), 2u);
  EXPECT_EQ(sets[0].weight, 0.3);
  EXPECT_EQ(sets[1].prefix, "b");
  EXPECT_THAT(base::refusal([] { parse_blend({}, "--data"); }), HasSubstr("--data"));
  EXPECT_THAT(base::refusal([] { parse_blend({"a", "b"}, "--valid"); }), HasSubstr("--valid: weight 'a'"));
  EXPECT_THAT(base::refusal([] { parse_blend({"1", "a", "b"}, "--data"); }), HasSubstr("3 words"));
  for (const char* weight : {"0", "-1", "nan", "inf", "", "1x", "1e999"})
    EXPECT_THAT(base::refusal([&] { parse_blend({weight, "a"}, "--data"); }), HasSubstr(fmt::format("'{}'", weight)));
}

}  // namespace
}  // namespace tessera::data
