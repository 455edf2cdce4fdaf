#include "tessera/serve/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <vector>

#include "tessera/base/error.h"

namespace tessera::serve {
namespace {

using Logits = std::vector<double>;

std::map<std::int64_t, int> draws(const Logits& logits, const Sampling& sampling, int count) {
  std::map<std::int64_t, int> times;
  for (int position = 0; position < count; ++position) ++times[choose_token(logits, sampling, position)];
  return times;
}

TEST(GreedyChoice, IsTheGreatestLogitAndOfEqualOnesTheFirst) {
  EXPECT_EQ(choose_token(Logits{-3, 2, 1, 2}, {}, 0), 1);
  EXPECT_EQ(choose_token(Logits{0}, {}, 5), 0);
  EXPECT_EQ(choose_token(Logits{-7, -7, -6}, {.temperature = 0, .top_p = 0.1, .seed = 9}, 3), 2);
}

TEST(Choice, RefusesLogitsThatAreNotFinite) {
  for (const double value : {std::nan(""), std::numeric_limits<double>::infinity()})
    for (const double temperature : {0.0, 1.0})
      EXPECT_THROW(choose_token(Logits{1, value, 2}, {.temperature = temperature}, 0), Error);
  EXPECT_THROW(choose_token(Logits{}, {}, 0), Error);
}

// The number of draws of an id has the deviation sqrt(n p (1 - p)). Five deviations have a probability of 6e-7, and the
// seed is fixed.
TEST(Draws, HaveTheProbabilitiesOfTheSoftmax) {
  const Logits logits{std::log(0.1), std::log(0.6), std::log(0.3)};
  for (const double temperature : {0.5, 1.0, 2.0}) {
    constexpr int kCount = 20000;
    const auto times = draws(logits, {.temperature = temperature, .top_p = 1, .seed = 4}, kCount);
    double sum = 0;
    for (const double logit : logits) sum += std::exp(logit / temperature);
    for (std::size_t id = 0; id < logits.size(); ++id) {
      const double p = std::exp(logits[id] / temperature) / sum;
      EXPECT_NEAR(times.at(static_cast<std::int64_t>(id)), kCount * p, 5 * std::sqrt(kCount * p * (1 - p)));
    }
  }
}

TEST(TopP, KeepsTheShortestPrefixWithTheShare) {
  const Logits logits{std::log(0.125), std::log(0.5), std::log(0.25), std::log(0.125)};
  const auto ids = [&](double top_p) {
    std::vector<std::int64_t> found;
    for (const auto& [id, times] : draws(logits, {.temperature = 1, .top_p = top_p, .seed = 2}, 400))
      found.push_back(id);
    return found;
  };
  EXPECT_EQ(ids(1e-9), (std::vector<std::int64_t>{1}));
  EXPECT_EQ(ids(0.49), (std::vector<std::int64_t>{1}));
  EXPECT_EQ(ids(0.51), (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(ids(0.74), (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(ids(0.8), (std::vector<std::int64_t>{0, 1, 2}));  // if probabilities are equal, the lower id comes first
  EXPECT_EQ(ids(1), (std::vector<std::int64_t>{0, 1, 2, 3}));
}

TEST(Draws, DependOnSeedAndPositionOnly) {
  const Logits logits(50, 0.0);
  const auto tokens = [&](std::uint64_t seed) {
    std::vector<std::int64_t> found;
    for (int position = 0; position < 40; ++position)
      found.push_back(choose_token(logits, {.temperature = 1, .top_p = 1, .seed = seed}, position));
    return found;
  };
  EXPECT_EQ(tokens(3), tokens(3));
  EXPECT_NE(tokens(3), tokens(4));
  const std::vector<std::int64_t> found = tokens(3);
  EXPECT_GT(std::set<std::int64_t>(found.begin(), found.end()).size(), 10u);
}

TEST(Draws, OfVeryDifferentLogitsDoNotOverflow) {
  EXPECT_EQ(choose_token(Logits{-1e300, 0, 1e300}, {.temperature = 1e-300}, 0), 2);
  EXPECT_EQ(choose_token(Logits{-1e4, 1e4, 0}, {.temperature = 0.7}, 0), 1);
}

}  // namespace
}  // namespace tessera::serve
