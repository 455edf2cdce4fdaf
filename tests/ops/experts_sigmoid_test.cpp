// The rule of DeepSeek-V3's routers: sigmoid scores, a bias in the choice, groups of experts, and the update of the
// bias.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/ops/router/bias_update.h"
#include "tessera/ops/router/router.h"
#include "tessera/ops/tensor.h"
#include "tests/ops/experts_values.h"

namespace tessera::ops::test {
namespace {

using testing::ElementsAre;

class SigmoidRouter : public KindTest {};
INSTANTIATE_TEST_SUITE_P(Kinds, SigmoidRouter, testing::ValuesIn(cpu_kinds()), name_of_kind);

constexpr std::int64_t kTokens = 41, kExperts = 12;

RouterOptions rule(std::int64_t groups, std::int64_t chosen_groups) {
  return {.k = 3,
          .normalizes = true,
          .score = RouterScore::sigmoid,
          .groups = groups,
          .chosen_groups = chosen_groups,
          .scale = 2.5};
}

std::vector<std::int32_t> chosen(const Routing& routing, std::int64_t token) {
  const std::int64_t k = routing.experts.size(1);
  const auto* data = routing.experts.const_data_ptr<std::int32_t>() + token * k;
  return {data, data + k};
}

// Returns the indices of the `count` largest values: by value descending, then by index ascending.
std::vector<std::int32_t> largest_of(const Values& values, std::size_t count) {
  std::vector<std::int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](std::int32_t a, std::int32_t b) {
    return values[static_cast<std::size_t>(a)] > values[static_cast<std::size_t>(b)];
  });
  order.resize(count);
  return order;
}

// Returns the choices of one token, from the definition in docs/numerics.md.
std::vector<std::int32_t> reference_choices(Values ranks, const RouterOptions& options) {
  const std::size_t size = ranks.size() / static_cast<std::size_t>(options.groups);
  Values of_groups;
  for (std::size_t group = 0; group < static_cast<std::size_t>(options.groups) && options.groups > 1; ++group) {
    const Values own(ranks.begin() + static_cast<std::ptrdiff_t>(group * size),
                     ranks.begin() + static_cast<std::ptrdiff_t>((group + 1) * size));
    const std::vector<std::int32_t> best = largest_of(own, 2);
    of_groups.push_back(own[static_cast<std::size_t>(best[0])] + own[static_cast<std::size_t>(best[1])]);
  }
  if (options.groups > 1) {
    const std::vector<std::int32_t> groups = largest_of(of_groups, static_cast<std::size_t>(options.chosen_groups));
    for (std::size_t e = 0; e < ranks.size(); ++e)
      if (std::ranges::find(groups, static_cast<std::int32_t>(e / size)) == groups.end())
        ranks[e] = -std::numeric_limits<double>::infinity();
  }
  return largest_of(ranks, static_cast<std::size_t>(options.k));
}

TEST_P(SigmoidRouter, ChoosesByScoreAndBiasAndWeighsByScore) {
  const at::TensorOptions wide = accumulator(type());
  const at::Tensor logits = random_tensor({kTokens, kExperts}, 21, wide, 2.0);
  const at::Tensor bias = random_tensor({kExperts}, 22, wide, 0.5);
  for (const auto& [groups, chosen_groups] : {std::pair{1L, 1L}, {4L, 2L}, {3L, 1L}, {6L, 6L}}) {
    SCOPED_TRACE(testing::Message() << chosen_groups << " of " << groups << " groups");
    const RouterOptions options = rule(groups, chosen_groups);
    const Routing routing = route(logits, options, bias);
    const Values x = values_of(logits), s = values_of(routing.probabilities), b = values_of(bias),
                 w = values_of(routing.weights);
    int moved = 0;  // tokens whose choices the bias changes
    for (std::int64_t token = 0; token < kTokens; ++token) {
      Values ranks, scores;
      double sum = 1e-20;
      for (std::int64_t e = 0; e < kExperts; ++e) {
        const auto i = static_cast<std::size_t>(token * kExperts + e);
        EXPECT_NEAR(s[i], 1 / (1 + std::exp(-x[i])), 8 * u() * s[i]);
        scores.push_back(s[i]);
        ranks.push_back(values_of((routing.probabilities[token][e] + bias[e]).reshape({1}))[0]);
      }
      const std::vector<std::int32_t> expected = reference_choices(ranks, options);
      EXPECT_EQ(chosen(routing, token), expected);
      moved += expected != reference_choices(scores, options) ? 1 : 0;
      for (const std::int32_t e : expected) sum += scores[static_cast<std::size_t>(e)];
      for (std::size_t slot = 0; slot < expected.size(); ++slot)
        EXPECT_NEAR(w[static_cast<std::size_t>(token) * 3 + slot],
                    2.5 * scores[static_cast<std::size_t>(expected[slot])] / sum, 16 * u());
    }
    EXPECT_GT(moved, 0) << "the bias changes no choice";
    EXPECT_EQ(values_of(routing.logsumexp), Values(static_cast<std::size_t>(kTokens), 0.0));
  }
}

TEST_P(SigmoidRouter, BackwardIsTheGradientOfTheDefinition) {
  constexpr std::int64_t kFew = 7;
  const at::TensorOptions wide = accumulator(type());
  const at::Tensor logits = random_tensor({kFew, kExperts}, 23, wide, 2.0);
  const at::Tensor dweights = random_tensor({kFew, 3}, 24, wide), dscores = random_tensor({kExperts}, 25, wide);
  at::Tensor counted = make({kFew}, at::kBool).fill_(true);
  counted[5].fill_(false);
  for (const bool normalizes : {false, true}) {
    RouterOptions options = rule(4, 2);
    options.normalizes = normalizes;
    const Routing routing = route(logits, options);
    const at::Tensor got = route_backward(routing, options, {.weights = dweights, .probabilities = dscores}, counted);

    const at::Tensor x = logits.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
    const at::Tensor experts = routing.experts.to(at::kLong), mask = counted.to(at::kDouble).unsqueeze(1);
    const Values expected = numeric_gradient(x, [&] {  // the choices are constant
      const at::Tensor scores = x.sigmoid();
      at::Tensor weights = scores.gather(1, experts);
      if (normalizes) weights = weights / (weights.sum(1, true) + 1e-20);
      return dot(weights * 2.5, dweights.to(at::kDouble)) +
             dot(scores * mask, dscores.to(at::kDouble).expand_as(scores).contiguous());
    });
    // The error of central differences is near 1e-9.
    expect_near(values_of(got), expected, [&](std::size_t) { return 64 * u() + 1e-8; });
  }
}

TEST_P(SigmoidRouter, RoutesATokenWithNaNToDistinctExpertsWithWeightsNaN) {
  at::Tensor logits = random_tensor({3, kExperts}, 26, accumulator(type()));
  for (const std::int64_t expert : {0, 7, 11}) {
    logits[1][expert].fill_(std::nan(""));
    for (const RouterOptions& options : {rule(1, 1), rule(4, 2)}) {
      const Routing routing = route(logits, options);
      std::vector<std::int32_t> experts = chosen(routing, 1);
      std::ranges::sort(experts);
      EXPECT_EQ(std::ranges::adjacent_find(experts), experts.end());
      for (const double weight : values_of(routing.weights[1])) EXPECT_TRUE(std::isnan(weight));
      for (const std::int64_t token : {0, 2})
        for (const double weight : values_of(routing.weights[token])) EXPECT_FALSE(std::isnan(weight));
    }
  }
}

TEST_P(SigmoidRouter, RejectsGroupsThatDoNotFit) {
  const at::Tensor logits = random_tensor({2, kExperts}, 1, accumulator(type()));
  EXPECT_NO_THROW(route(logits, rule(6, 2)));
  for (const auto& [groups, chosen_groups] : {std::pair{5L, 2L}, {12L, 3L}, {6L, 1L}, {6L, 7L}, {6L, 0L}, {0L, 1L}})
    EXPECT_THROW(route(logits, rule(groups, chosen_groups)), Error) << chosen_groups << " of " << groups;
  EXPECT_THROW(route(logits, rule(1, 1), random_tensor({kExperts - 1}, 2, accumulator(type()))), Error);
}

// Updates the biases of the experts from `first` on. counts: of all experts.
template <typename A>
void update(std::vector<A>& bias, std::int64_t first, const std::vector<std::int64_t>& counts, double rate) {
  const RouterBiasPart part{
      .bias = bias.data(), .first = first, .count = static_cast<std::int64_t>(bias.size()), .counts = counts.data()};
  update_router_biases({&part, 1}, {.type = sizeof(A) == 4 ? quant::DType::fp32 : quant::DType::fp64,
                                    .experts = static_cast<std::int64_t>(counts.size()),
                                    .rate = rate});
}

TEST(RouterBias, MovesTowardsTheMeanOfTheCounts) {
  const std::vector<std::int64_t> counts{4, 0, 2, 2};
  std::vector<float> bias{1.0f, 1.0f, 1.0f, 0.5f};
  update(bias, 0, counts, 0.25);
  EXPECT_THAT(bias, ElementsAre(0.75f, 1.25f, 1.0f, 0.5f));
  std::vector<double> part{0, 0};
  update(part, 1, counts, 0.1);
  EXPECT_THAT(part, ElementsAre(0.1, 0.0));
  EXPECT_THROW(update(part, 3, counts, 0.1), Error);
}

// Sums of counts beyond 2^53 and products beyond 2^32 are exact.
TEST(RouterBias, ComparesLargeCountsExactly) {
  const std::vector<std::int64_t> counts{(std::int64_t{1} << 54) + 1, std::int64_t{1} << 54};
  std::vector<float> bias{0, 0};
  update(bias, 0, counts, 1);
  EXPECT_THAT(bias, ElementsAre(-1.0f, 1.0f));
}

}  // namespace
}  // namespace tessera::ops::test
