// Tests the router: its products, the choice of experts, and the sums for its losses.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/ops/router/router.h"
#include "tessera/ops/router/router_gradient.h"
#include "tessera/ops/tensor.h"
#include "tests/ops/experts_values.h"

namespace tessera::ops::test {
namespace {

using testing::ElementsAre;

class Router : public KindTest {};
INSTANTIATE_TEST_SUITE_P(Kinds, Router, testing::ValuesIn(cpu_kinds()), name_of_kind);

std::vector<std::int32_t> experts_of(const Routing& routing, std::int64_t token) {
  const std::int64_t k = routing.experts.size(1);
  const auto* data = routing.experts.const_data_ptr<std::int32_t>() + token * k;
  return {data, data + k};
}

at::Tensor all_counted(std::int64_t tokens) {
  return make({tokens}, at::kBool).fill_(true);
}
// Every third token does not count.
at::Tensor some_counted(std::int64_t tokens) {
  at::Tensor counted = all_counted(tokens);
  for (std::int64_t token = 1; token < tokens; token += 3) counted[token].fill_(false);
  return counted;
}

// ---- products

struct RouterSizes {
  std::int64_t tokens, experts, hidden;
};
std::vector<RouterSizes> router_sizes() {
  return {{1, 1, 1}, {5, 7, 33}, {600, 3, 17}, {3, 128, 64}, {0, 4, 8}, {2, 5, 2048}};
}

// A sum whose additions are `depth` deep has an error of at most (depth + 1) u times the sum of magnitudes. The fp64
// reference is `terms` deep.
void expect_sums(const at::Tensor& got, const Products& expected, double depth, std::int64_t terms, double u) {
  const double error = (depth + 1) * u + (static_cast<double>(terms) + 1) * roundoff(at::kDouble);
  expect_near(values_of(got), expected.value, [&](std::size_t i) { return 1.01 * error * expected.magnitude[i]; });
}

TEST_P(Router, ProductsEqualTheReference) {
  for (const auto& [tokens, experts, hidden] : router_sizes()) {
    SCOPED_TRACE(testing::Message() << tokens << " tokens, " << experts << " experts, hidden " << hidden);
    const at::TensorOptions wide = accumulator(type());
    const at::Tensor x = random_tensor({tokens, hidden}, 1, type()), w = random_tensor({experts, hidden}, 2, wide);
    const at::Tensor dlogits = random_tensor({tokens, experts}, 3, wide);

    const at::Tensor logits = router_logits(x, w);
    EXPECT_EQ(logits.scalar_type(), accumulator(GetParam().type));
    // 32 lanes and a tree of 5 additions.
    expect_sums(logits, multiply(x, w.t()), static_cast<double>(hidden) / 32 + 6, hidden, u());

    const at::Tensor dx = router_dgrad(dlogits, w);
    EXPECT_EQ(dx.scalar_type(), accumulator(GetParam().type));
    expect_sums(dx, multiply(dlogits, w), static_cast<double>(experts), experts, u());

    const at::Tensor other = random_tensor({tokens, hidden}, 5, type());
    EXPECT_TRUE(
        same_bits(add_router_dgrad(other, dlogits, w), other.to(dx.scalar_type()).add(dx).to(other.scalar_type())));

    at::Tensor dw = random_tensor({experts, hidden}, 4, wide);
    const at::Tensor before = dw.clone();
    router_wgrad(dlogits, x, dw, false);
    expect_sums(dw, multiply(dlogits.t(), x), static_cast<double>(tokens), tokens, u());
    at::Tensor sum = before.clone();
    router_wgrad(dlogits, x, sum, true);
    EXPECT_TRUE(same_bits(sum, before.clone().add_(dw))) << "the product is not computed alone and then added";
  }
}

TEST_P(Router, AddsTokensToTheWeightGradientInOrder) {
  const at::Tensor dlogits = tensor_of({1, u(), u()}, {3, 1}, accumulator(type()));
  const at::Tensor x = tensor_of({1, 1, 1}, {3, 1}, type());
  at::Tensor dw = tensor_of({7}, {1, 1}, accumulator(type()));
  router_wgrad(dlogits, x, dw, false);
  EXPECT_EQ(values_of(dw)[0], 1.0);
  router_wgrad(dlogits.flip(0), x, dw, false);
  EXPECT_EQ(values_of(dw)[0], 1.0 + 2 * u());
  // Tokens 512 and 513 form the second chunk, whose terms are added before the first chunk is added.
  std::vector<double> terms(514);
  terms[0] = 1, terms[512] = terms[513] = u();
  const at::Tensor ones = tensor_of(std::vector<double>(514, 1), {514, 1}, type());
  router_wgrad(tensor_of(terms, {514, 1}, accumulator(type())), ones, dw, false);
  EXPECT_EQ(values_of(dw)[0], 1.0 + 2 * u());
}

TEST_P(Router, RejectsMismatchedOperands) {
  const at::TensorOptions wide = accumulator(type()), other = wide.dtype(u() == 0x1p-53 ? at::kFloat : at::kDouble);
  const at::Tensor x = random_tensor({4, 6}, 1, type()), w = random_tensor({3, 6}, 2, wide);
  const at::Tensor dlogits = random_tensor({4, 3}, 3, wide);
  EXPECT_THROW(router_logits(x, random_tensor({3, 5}, 2, wide)), Error);
  EXPECT_THROW(router_logits(x, random_tensor({3, 6}, 2, other)), Error);
  EXPECT_THROW(router_dgrad(random_tensor({4, 2}, 3, wide), w), Error);
  EXPECT_THROW(router_dgrad(random_tensor({4, 3}, 3, other), w), Error);
  at::Tensor dw = w.clone();
  EXPECT_NO_THROW(router_wgrad(dlogits, x, dw, false));
  EXPECT_THROW(router_wgrad(random_tensor({5, 3}, 3, wide), x, dw, false), Error);
  at::Tensor wrong_type = random_tensor({3, 6}, 2, other), wrong_shape = random_tensor({6, 3}, 2, wide);
  EXPECT_THROW(router_wgrad(dlogits, x, wrong_type, false), Error);
  EXPECT_THROW(router_wgrad(dlogits, x, wrong_shape, false), Error);
  EXPECT_THROW(router_wgrad(random_tensor({4, 3}, 3, other), x, wrong_type, false), Error);
}

// ---- route

// With d = logit - maximum of the row, exp(d) has a relative error of |d| u from the subtraction and 2.2 u from the
// exponential function. The sum of E terms adds E u, and the division adds u.
TEST_P(Router, ProbabilitiesEqualTheReference) {
  for (const auto& [tokens, experts] : {std::pair{1L, 1L}, {9L, 7L}, {40L, 128L}, {0L, 3L}}) {
    SCOPED_TRACE(testing::Message() << tokens << " tokens, " << experts << " experts");
    const at::Tensor logits = random_tensor({tokens, experts}, 5, accumulator(type()), 8.0);
    const Routing routing = route(logits, {.k = 1});
    const Values x = values_of(logits), p = values_of(routing.probabilities), lse = values_of(routing.logsumexp);
    const auto e = static_cast<std::size_t>(experts);
    for (std::size_t token = 0; token < static_cast<std::size_t>(tokens); ++token) {
      const double most = *std::max_element(x.begin() + static_cast<std::ptrdiff_t>(token * e),
                                            x.begin() + static_cast<std::ptrdiff_t>((token + 1) * e));
      double sum = 0;
      for (std::size_t i = 0; i < e; ++i) sum += std::exp(x[token * e + i] - most);
      const double error = 1.1 * (2 * 16 + 2 * 2.2 + static_cast<double>(e) + 2) * (u() + roundoff(at::kDouble));
      for (std::size_t i = 0; i < e; ++i) {
        const double expected = std::exp(x[token * e + i] - most) / sum;
        EXPECT_NEAR(p[token * e + i], expected, error * expected);
      }
      const double expected = most + std::log(sum);
      EXPECT_NEAR(lse[token], expected, error + 4 * u() * (std::abs(expected) + std::log(sum)));
    }
  }
}

TEST_P(Router, ChoosesByProbabilityThenByIndex) {
  for (const bool normalizes : {false, true})
    for (const auto& [experts, k] : {std::pair{1L, 1L}, {7L, 1L}, {7L, 2L}, {7L, 7L}, {128L, 8L}}) {
      SCOPED_TRACE(testing::Message() << k << " of " << experts << (normalizes ? ", normalized" : ""));
      at::Tensor logits = random_tensor({30, experts}, 6, accumulator(type()), 3.0);
      logits.round_();  // many logits are then equal
      const Routing routing = route(logits, {.k = k, .normalizes = normalizes});
      ASSERT_EQ(routing.experts.scalar_type(), at::kInt);
      const Values p = values_of(routing.probabilities), weights = values_of(routing.weights);
      for (std::int64_t token = 0; token < 30; ++token) {
        const double* row = p.data() + token * experts;
        std::vector<std::int32_t> order(static_cast<std::size_t>(experts));
        std::iota(order.begin(), order.end(), 0);
        std::ranges::stable_sort(order, [&](std::int32_t a, std::int32_t b) { return row[a] > row[b]; });
        order.resize(static_cast<std::size_t>(k));
        EXPECT_EQ(experts_of(routing, token), order) << "token " << token;
        double sum = 0;
        for (const std::int32_t expert : order) sum += row[expert];
        for (std::int64_t slot = 0; slot < k; ++slot) {  // k - 1 additions and one division
          const double expected = row[order[static_cast<std::size_t>(slot)]] / (normalizes ? sum : 1);
          const double error = normalizes ? (static_cast<double>(k) + 1) * (u() + roundoff(at::kDouble)) : 0;
          EXPECT_NEAR(weights[static_cast<std::size_t>(token * k + slot)], expected, error * expected);
        }
      }
    }
}

TEST_P(Router, ChoosesTheLowerIndexOfEqualExperts) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const at::Tensor logits = tensor_of(
      {1, 3, 3, 2, 3, /**/ 5, 5, 5, 5, 5, /**/ -kInfinity, 0, -kInfinity, 0, -kInfinity}, {3, 5}, accumulator(type()));
  const Routing routing = route(logits, {.k = 3});
  EXPECT_THAT(experts_of(routing, 0), ElementsAre(1, 2, 4));
  EXPECT_THAT(experts_of(routing, 1), ElementsAre(0, 1, 2));
  EXPECT_THAT(experts_of(routing, 2), ElementsAre(1, 3, 0));
  EXPECT_EQ(values_of(routing.weights.narrow(0, 2, 1))[2], 0.0);
}

TEST_P(Router, SubtractsTheMaximumOfTheRow) {
  const Routing routing = route(tensor_of({5000, 4999, -5000, -5001}, {2, 2}, accumulator(type())), {.k = 1});
  const double p = 1 / (1 + std::exp(-1.0));
  for (std::size_t i : {0u, 2u}) EXPECT_NEAR(values_of(routing.probabilities)[i], p, 16 * u());
  const double log_sum = std::log1p(std::exp(-1.0));
  EXPECT_NEAR(values_of(routing.logsumexp)[0], 5000 + log_sum, 5001 * u());
  EXPECT_NEAR(values_of(routing.logsumexp)[1], -5000 + log_sum, 5001 * u());
}

TEST_P(Router, RoutesATokenWithNaNToDistinctExpertsWithWeightsNaN) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const Values rows[] = {{1, kNaN, 3, 4, 5},      {kNaN, 2, 3, 4, 5},
                         {1, 2, 3, 4, kNaN},      {kNaN, kNaN, kNaN, kNaN, kNaN},
                         {1, 2, kInfinity, 4, 5}, {-kInfinity, -kInfinity, -kInfinity, -kInfinity, -kInfinity}};
  const Values before{1, 4, 2, 5, 3}, after{3, 1, 4, 1, 5};
  for (const bool normalizes : {false, true})
    for (const Values& row : rows) {
      Values values = before;
      values.insert(values.end(), row.begin(), row.end());
      values.insert(values.end(), after.begin(), after.end());
      const at::Tensor logits = tensor_of(values, {3, 5}, accumulator(type()));
      const RouterOptions options{.k = 3, .normalizes = normalizes};
      const Routing routing = route(logits, options);
      EXPECT_THAT(experts_of(routing, 1), ElementsAre(0, 1, 2));
      for (const double weight : values_of(routing.weights[1])) EXPECT_TRUE(std::isnan(weight));
      for (const std::int64_t token : {0, 2}) {
        const Routing alone = route(logits.narrow(0, token, 1), options);
        EXPECT_TRUE(same_bits(alone.probabilities[0], routing.probabilities[token]));
        EXPECT_TRUE(same_bits(alone.weights[0], routing.weights[token]));
        EXPECT_EQ(experts_of(alone, 0), experts_of(routing, token));
      }
    }
}

TEST_P(Router, RejectsAnImpossibleNumberOfChoices) {
  const at::Tensor logits = random_tensor({2, 4}, 1, accumulator(type()));
  EXPECT_THROW(route(logits, {.k = 0}), Error);
  EXPECT_THROW(route(logits, {.k = 5}), Error);
}

TEST_P(Router, BitsOfATokenDoNotDependOnOtherTokens) {
  const at::TensorOptions wide = accumulator(type());
  const at::Tensor x = random_tensor({37, 101}, 8, type()), w = random_tensor({7, 101}, 9, wide);
  const RouterOptions options{.k = 3, .normalizes = true};
  const at::Tensor logits = router_logits(x, w);
  const Routing routing = route(logits, options);
  const RoutingGradients gradients{.weights = random_tensor({37, 3}, 10, wide),
                                   .probabilities = random_tensor({7}, 11, wide),
                                   .logsumexp_squares = random_tensor({1}, 12, wide)};
  const at::Tensor counted = some_counted(37);
  const at::Tensor dlogits = route_backward(routing, options, gradients, counted), dx = router_dgrad(dlogits, w);
  for (const auto& [begin, count] : {std::pair{0L, 1L}, {36L, 1L}, {5L, 7L}}) {
    const at::Tensor some_logits = router_logits(x.narrow(0, begin, count), w);
    EXPECT_TRUE(same_bits(some_logits, logits.narrow(0, begin, count)));
    const Routing some = route(some_logits, options);
    EXPECT_TRUE(same_bits(some.weights, routing.weights.narrow(0, begin, count)));
    RoutingGradients own = gradients;
    own.weights = gradients.weights.narrow(0, begin, count).clone();
    const at::Tensor some_dlogits = route_backward(some, options, own, counted.narrow(0, begin, count));
    EXPECT_TRUE(same_bits(some_dlogits, dlogits.narrow(0, begin, count)));
    EXPECT_TRUE(same_bits(router_dgrad(some_dlogits, w), dx.narrow(0, begin, count)));
  }
}

// ---- sums

TEST_P(Router, SumsCountOnlyCountedTokens) {
  for (const std::int64_t tokens : {0, 1, 7, 256, 257, 600}) {
    SCOPED_TRACE(testing::Message() << tokens << " tokens");
    constexpr std::int64_t kExperts = 5, kChoices = 2;
    const at::Tensor counted = some_counted(tokens);
    at::Tensor logits = random_tensor({tokens, kExperts}, 13, accumulator(type()), 3.0);
    if (tokens > 1) logits[1].fill_(std::nan(""));  // it does not count
    const Routing routing = route(logits, {.k = kChoices});
    const Values p = values_of(routing.probabilities), lse = values_of(routing.logsumexp);
    std::vector<std::int64_t> counts(kExperts);
    Values sums(kExperts);
    double squares = 0;
    for (std::int64_t token = 0; token < tokens; ++token) {
      if (!counted[token].item<bool>()) continue;
      for (const std::int32_t expert : experts_of(routing, token)) ++counts[static_cast<std::size_t>(expert)];
      for (std::size_t e = 0; e < kExperts; ++e) sums[e] += p[static_cast<std::size_t>(token * kExperts) + e];
      squares += lse[static_cast<std::size_t>(token)] * lse[static_cast<std::size_t>(token)];
    }
    const RouterSums got = router_sums(routing, counted);
    for (std::size_t e = 0; e < kExperts; ++e)
      EXPECT_EQ(got.counts.const_data_ptr<std::int64_t>()[e], counts[e]) << "expert " << e;
    // The terms are positive. At most 256 additions in a chunk and one for each chunk.
    const double depth =
        static_cast<double>(std::min(tokens, std::int64_t{256})) + static_cast<double>(tokens) / 256 + 3;
    const double error = depth * u() + static_cast<double>(tokens + 1) * roundoff(at::kDouble);
    expect_near(values_of(got.probabilities), sums, [&](std::size_t e) { return error * sums[e]; });
    expect_near(values_of(got.logsumexp_squares), {squares}, [&](std::size_t) { return error * squares; });
  }
}

// The sum of a chunk is 256 small terms, which are lost if they are added to 1 one by one.
TEST_P(Router, SumsAddChunksOf256TokensInTokenOrder) {
  constexpr std::int64_t kTokens = 512;
  const at::ScalarType wide = accumulator(GetParam().type);
  const double root = wide == at::kDouble ? 0x1p-27 : 0x1p-12, small = root * root;
  Routing routing{.probabilities = make({kTokens, 1}, wide).fill_(small),
                  .logsumexp = make({kTokens}, wide).fill_(root),
                  .experts = choices_tensor(std::vector<std::int32_t>(kTokens, 0), 1),
                  .weights = {}};
  routing.probabilities[0].fill_(1);
  routing.logsumexp[0].fill_(1);
  const RouterSums sums = router_sums(routing, all_counted(kTokens));
  EXPECT_EQ(values_of(sums.probabilities)[0], 1 + 256 * small);
  EXPECT_EQ(values_of(sums.logsumexp_squares)[0], 1 + 256 * small);
  EXPECT_EQ(sums.counts.item<std::int64_t>(), kTokens);
}

// ---- backward

struct BackwardCase {
  std::int64_t experts, k;
  bool normalizes, weights, probabilities, squares;
};

// The error of central differences is below 1e-8 at magnitudes near 1 (token_ops_test.cpp).
TEST(RouterBackward, EqualsFiniteDifferences) {
  constexpr std::int64_t kTokens = 5, kHidden = 6;
  for (const BackwardCase& it : {BackwardCase{7, 2, false, true, true, true},
                                 {7, 2, true, true, true, true},
                                 {7, 7, true, true, false, false},
                                 {7, 1, true, true, true, false},
                                 {4, 3, false, true, false, false},
                                 {4, 3, false, false, true, false},
                                 {4, 3, true, false, false, true},
                                 {1, 1, false, true, true, true}}) {
    SCOPED_TRACE(testing::Message() << it.k << " of " << it.experts << ", normalizes " << it.normalizes);
    const at::Tensor x = random_tensor({kTokens, kHidden}, 20, at::kDouble);
    at::Tensor w = random_tensor({it.experts, kHidden}, 21, at::kDouble), counted = some_counted(kTokens);
    const RouterOptions options{.k = it.k, .normalizes = it.normalizes};
    RoutingGradients gradients;
    if (it.weights) gradients.weights = random_tensor({kTokens, it.k}, 22, at::kDouble);
    if (it.probabilities) gradients.probabilities = random_tensor({it.experts}, 23, at::kDouble);
    if (it.squares) gradients.logsumexp_squares = random_tensor({1}, 24, at::kDouble);
    const auto loss = [&] {
      const Routing routing = route(router_logits(x, w), options);
      const RouterSums sums = router_sums(routing, counted);
      double total = 0;
      if (it.weights) total += dot(routing.weights, gradients.weights);
      if (it.probabilities) total += dot(sums.probabilities, gradients.probabilities);
      if (it.squares) total += dot(sums.logsumexp_squares, gradients.logsumexp_squares);
      return total;
    };
    const at::Tensor dlogits = route_backward(route(router_logits(x, w), options), options, gradients, counted);
    at::Tensor dw = w.clone();
    router_wgrad(dlogits, x, dw, false);
    const auto bound = [](std::size_t) { return 1e-8; };
    expect_near(values_of(router_dgrad(dlogits, w)), numeric_gradient(x, loss), bound);
    expect_near(values_of(dw), numeric_gradient(w, loss), bound);
  }
}

// With g the gradient of the probabilities p: dlogits_e = p_e (g_e - sum_j p_j g_j) + 2 z logsumexp p_e, where z is the
// gradient of the sum of logsumexp^2.
TEST_P(Router, BackwardEqualsTheFormula) {
  constexpr std::int64_t kTokens = 11;
  constexpr std::size_t kExperts = 9, kChoices = 4;
  const at::TensorOptions wide = accumulator(type());
  for (const bool normalizes : {false, true}) {
    const RouterOptions options{.k = kChoices, .normalizes = normalizes};
    const Routing routing = route(random_tensor({kTokens, kExperts}, 25, wide, 3.0), options);
    const RoutingGradients gradients{.weights = random_tensor({kTokens, kChoices}, 26, wide),
                                     .probabilities = random_tensor({kExperts}, 27, wide),
                                     .logsumexp_squares = random_tensor({1}, 28, wide)};
    const at::Tensor counted = some_counted(kTokens);
    const Values got = values_of(route_backward(routing, options, gradients, counted));
    const Values all_p = values_of(routing.probabilities), dp = values_of(gradients.probabilities);
    const double z = values_of(gradients.logsumexp_squares)[0];
    for (std::int64_t token = 0; token < kTokens; ++token) {
      const double* p = all_p.data() + static_cast<std::size_t>(token) * kExperts;
      const Values dweights = values_of(gradients.weights[token]);
      const bool counts = counted[token].item<bool>();
      const std::vector<std::int32_t> chosen = experts_of(routing, token);
      double sum = 1, mean = 0, magnitude = 0;
      if (normalizes) sum = 0;
      for (std::size_t slot = 0; normalizes && slot < kChoices; ++slot) sum += p[chosen[slot]];
      for (std::size_t slot = 0; normalizes && slot < kChoices; ++slot) {
        mean += dweights[slot] * p[chosen[slot]] / sum;
        magnitude += std::abs(dweights[slot]) * p[chosen[slot]] / sum;
      }
      Values g(kExperts), scale(kExperts);
      for (std::size_t e = 0; counts && e < kExperts; ++e) scale[e] = std::abs(g[e] = dp[e]);
      for (std::size_t slot = 0; slot < kChoices; ++slot) {
        g[static_cast<std::size_t>(chosen[slot])] += (dweights[slot] - mean) / sum;
        scale[static_cast<std::size_t>(chosen[slot])] += (std::abs(dweights[slot]) + magnitude) / sum;
      }
      double inner = 0, inner_scale = 0;
      for (std::size_t e = 0; e < kExperts; ++e) {
        inner += p[e] * g[e];
        inner_scale += p[e] * scale[e];
      }
      const double dlse = counts ? 2 * values_of(routing.logsumexp[token])[0] * z : 0;
      // The bound counts these roundings: the sums over choices (weights included), the sum over experts, and 10 single
      // operations.
      const double error = (4.0 * kChoices + kExperts + 10) * (u() + roundoff(at::kDouble));
      for (std::size_t e = 0; e < kExperts; ++e)
        EXPECT_NEAR(got[static_cast<std::size_t>(token) * kExperts + e], p[e] * (g[e] - inner) + dlse * p[e],
                    error * p[e] * (scale[e] + inner_scale + std::abs(dlse)))
            << "token " << token << ", expert " << e;
    }
  }
}

TEST_P(Router, BackwardOfUncountedTokensHasOnlyTheirWeights) {
  const at::TensorOptions wide = accumulator(type());
  const RouterOptions options{.k = 2, .normalizes = true};
  const Routing routing = route(random_tensor({6, 5}, 29, wide), options);
  const RoutingGradients all{.weights = random_tensor({6, 2}, 30, wide),
                             .probabilities = random_tensor({5}, 31, wide),
                             .logsumexp_squares = random_tensor({1}, 32, wide)};
  const RoutingGradients weights{.weights = all.weights, .probabilities = {}, .logsumexp_squares = {}};
  const at::Tensor counted = some_counted(6);
  const at::Tensor got = route_backward(routing, options, all, counted);
  const at::Tensor expected = route_backward(routing, options, weights, counted);
  for (std::int64_t token = 0; token < 6; ++token)
    EXPECT_EQ(same_bits(got[token], expected[token]), !counted[token].item<bool>()) << "token " << token;
}

TEST_P(Router, RejectsGradientsOfOtherShapesOrTypes) {
  const at::TensorOptions wide = accumulator(type()), other = wide.dtype(u() == 0x1p-53 ? at::kFloat : at::kDouble);
  const RouterOptions options{.k = 2};
  const Routing routing = route(random_tensor({6, 5}, 29, wide), options);
  const at::Tensor counted = all_counted(6);
  const auto backward = [&](const RoutingGradients& gradients) {
    route_backward(routing, options, gradients, counted);
  };
  EXPECT_THROW(router_sums(routing, all_counted(5)), Error);
  EXPECT_THROW(route_backward(routing, options, {}, all_counted(5)), Error);
  EXPECT_THROW(route_backward(routing, {.k = 3}, {}, counted), Error);
  EXPECT_THROW(backward({.weights = random_tensor({6, 3}, 1, wide)}), Error);
  EXPECT_THROW(backward({.weights = random_tensor({6, 2}, 1, other)}), Error);
  EXPECT_THROW(backward({.probabilities = random_tensor({4}, 1, wide)}), Error);
  EXPECT_THROW(backward({.probabilities = random_tensor({5}, 1, other)}), Error);
  EXPECT_THROW(backward({.logsumexp_squares = random_tensor({2}, 1, wide)}), Error);
  EXPECT_THROW(backward({.logsumexp_squares = random_tensor({1}, 1, other)}), Error);
}

// ---- dry runs

TEST_P(Router, HasTheShapesOfARealRunInADryRun) {
  const at::TensorOptions wide = accumulator(type());
  const RouterOptions options{.k = 3};
  const auto run = [&](const at::Tensor& x, const at::Tensor& w, const at::Tensor& counted) {
    std::vector<at::Tensor> results{router_logits(x, w)};
    const Routing routing = route(results[0], options);
    const RouterSums sums = router_sums(routing, counted);
    const RoutingGradients gradients{
        .weights = routing.weights, .probabilities = sums.probabilities, .logsumexp_squares = sums.logsumexp_squares};
    const at::Tensor dlogits = route_backward(routing, options, gradients, counted);
    at::Tensor dw = make(w.sizes(), w.scalar_type(), w.device());
    router_wgrad(dlogits, x, dw, true);
    for (const at::Tensor& result :
         {routing.probabilities, routing.logsumexp, routing.experts, routing.weights, sums.counts, sums.probabilities,
          sums.logsumexp_squares, dlogits, router_dgrad(dlogits, w)})
      results.push_back(result);
    return results;
  };
  const std::vector<at::Tensor> real =
      run(random_tensor({9, 6}, 1, type()), random_tensor({5, 6}, 2, wide), all_counted(9));
  std::vector<at::Tensor> dry;
  const std::vector<Work> work = work_of([&] {
    dry = run(dry_tensor({9, 6}, type()), dry_tensor({5, 6}, wide), dry_tensor({9}, at::kBool));
  });
  ASSERT_EQ(dry.size(), real.size());
  for (std::size_t i = 0; i < real.size(); ++i) {
    EXPECT_TRUE(is_dry(dry[i])) << "result " << i;
    EXPECT_EQ(dry[i].sizes(), real[i].sizes()) << "result " << i;
    EXPECT_EQ(dry[i].scalar_type(), real[i].scalar_type()) << "result " << i;
  }
  ASSERT_EQ(work.size(), 6u);
  for (const std::size_t product : {0u, 4u, 5u}) EXPECT_EQ(work[product].flops, 2.0 * 9 * 5 * 6) << "call " << product;
  for (const Work& it : work) EXPECT_GT(it.bytes, 0) << it.name;
}

}  // namespace
}  // namespace tessera::ops::test
