#include "tessera/data/blend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
  // By hand: at position 4, for example, the deficits are 25 - 20, 15 - 10 and 10 - 10, so a has it, the first of
  // equals.
  const BlendOrder order({0.5, 0.3, 0.2});
  EXPECT_THAT(order.shares(), ElementsAre(5, 3, 2));
  EXPECT_EQ(turns(order, 20), "abcaabacbaabcaabacba");
  EXPECT_EQ(turns(BlendOrder({1, 1}), 6), "ababab");
  EXPECT_EQ(turns(BlendOrder({2, 1}), 6), "abaaba");
}

TEST(Blend, SharesAreExactForDecimals) {
  EXPECT_THAT(BlendOrder({30, 70}).shares(), ElementsAre(3, 7));
  EXPECT_THAT(BlendOrder({0.0001, 0.9999}).shares(), ElementsAre(1, 9999));
  EXPECT_THAT(BlendOrder({1e9, 3e9}).period(), ::testing::Le(65536));
}

TEST(Blend, EveryPeriodHoldsTheSharesAndCountsGoOn) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 40; ++round) {
    std::vector<double> weights(1 + random() % 6);
    for (double& weight : weights)
      weight =
          round % 2 ? static_cast<double>(1 + random() % 50) : std::exp(static_cast<double>(random() % 1000) / 100 - 5);
    const BlendOrder order(weights);
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
      // Rounding to 1/65536 moves a share by less than 1/65536, and by as much again a set where small ones were raised
      // to 1.
      const double bound = static_cast<double>(1 + weights.size()) / 65536;
      EXPECT_NEAR(static_cast<double>(order.shares()[i]) / static_cast<double>(order.period()), weights[i] / sum,
                  bound);
    }
  }
}

TEST(Blend, NoSetIsStarved) {
  const BlendOrder order({1e-9, 1.0, 1.0 / 3});
  EXPECT_GE(order.shares()[0], 1);
  EXPECT_EQ(order.period(), 65536);
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
