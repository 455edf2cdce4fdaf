// Dropout: its factors, and the norm that applies them.
#include "tessera/ops/dropout.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

#include "tessera/base/error.h"
#include "tessera/ops/norm/rms_norm.h"
#include "tests/ops/values.h"

namespace tessera::ops::test {
namespace {

// The factors from their definition in dropout.h, in row-major order.
Values defined_factors(const Dropout& dropout, std::int64_t step, std::int64_t rows, std::int64_t columns) {
  const std::uint64_t key = dropout.seed ^ 0x64726F706F757431u;
  const double least = std::floor(dropout.probability * 0x1p32), p = least / 0x1p32;
  Values factors;
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t column = 0; column < columns; ++column) {
      const base::PhiloxCounter words =
          base::philox({static_cast<std::uint32_t>(column / 4), static_cast<std::uint32_t>(dropout.first_token + row),
                        static_cast<std::uint32_t>(step), dropout.site},
                       {static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)});
      factors.push_back(words[static_cast<std::size_t>(column % 4)] < least ? 0 : 1 / (1 - p));
    }
  return factors;
}

// The factors of a dropout as the norm's sum of a matrix of ones.
Values factors_of(Dropout dropout, std::int64_t step, std::int64_t rows, std::int64_t columns) {
  dropout.step = &step;
  const at::Tensor ones = at::ones({rows, columns}, at::kDouble), weight = at::ones({columns}, at::kDouble);
  return values_of(rms_norm_forward(ones, at::Tensor(), weight, 1e-5, dropout).sum);
}

std::int64_t count_of_zeros(const Values& values) {
  return std::count(values.begin(), values.end(), 0.0);
}

TEST(DropoutFactors, AreZeroWithTheGivenProbability) {
  constexpr std::int64_t rows = 500, columns = 401;
  for (const double p : {0.001, 0.1, 0.5, 0.9}) {
    const Values factors = factors_of({.probability = p, .seed = 3, .site = 5}, 7, rows, columns);
    // By the word of a column, and in total. A bound is five standard deviations of a binomial distribution.
    std::array<std::int64_t, 4> zeros{}, all{};
    for (std::size_t i = 0; i < factors.size(); ++i) {
      ++all[i % columns % 4];
      zeros[i % columns % 4] += factors[i] == 0;
      if (factors[i] != 0) {
        ASSERT_NEAR(factors[i], 1 / (1 - p), 1e-9 / (1 - p));
      }
    }
    for (std::size_t word = 0; word < 4; ++word) {
      const auto n = static_cast<double>(all[word]);
      EXPECT_NEAR(static_cast<double>(zeros[word]), n * p, 5 * std::sqrt(n * p * (1 - p))) << p << " word " << word;
    }
    const double n = rows * columns;
    EXPECT_NEAR(static_cast<double>(count_of_zeros(factors)), n * p, 5 * std::sqrt(n * p * (1 - p))) << p;
  }
}

// Two independent masks both drop an element with probability p^2.
TEST(DropoutFactors, AreIndependentForOtherSeedsStepsSitesTokensAndColumns) {
  constexpr std::int64_t rows = 300, columns = 256;
  const double p = 0.3, n = rows * columns;
  const Dropout base{.probability = p, .seed = 1, .site = 2, .first_token = 1000};
  const Values first = factors_of(base, 10, rows, columns);
  Dropout seed = base, site = base, token = base;
  seed.seed = 2;
  site.site = 3;
  token.first_token = 1000 + rows;
  Values shifted = first;
  std::rotate(shifted.begin(), shifted.begin() + 1, shifted.end());
  for (const Values& other : {factors_of(seed, 10, rows, columns), factors_of(base, 11, rows, columns),
                              factors_of(site, 10, rows, columns), factors_of(token, 10, rows, columns), shifted}) {
    double both = 0;
    for (std::size_t i = 0; i < first.size(); ++i) both += first[i] == 0 && other[i] == 0;
    EXPECT_NEAR(both, n * p * p, 5 * std::sqrt(n * p * p * (1 - p * p)));
  }
}

class DropoutOps : public KindTest {
 protected:
  // `step` is in the memory of the device.
  Dropout with_step(Dropout dropout, std::int64_t step) {
    step_ = ids({step});
    dropout.step = step_.const_data_ptr<std::int64_t>();
    return dropout;
  }

 private:
  at::Tensor step_;
};
INSTANTIATE_TEST_SUITE_P(Kinds, DropoutOps, testing::ValuesIn(every_kind()), name_of_kind);

// Sizes with and without whole packs, and rows of every kernel.
constexpr std::pair<std::int64_t, std::int64_t> kSizes[] = {{3, 1},   {5, 17},   {4, 130},  {2, 256},  {0, 16},
                                                            {600, 8}, {2, 2048}, {2, 9001}, {2, 33000}};

Values product(Values a, const Values& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] *= b[i];
  return a;
}

TEST_P(DropoutOps, TheNormAddsTheDefinedFactorsAndReturnsBothGradients) {
  constexpr std::int64_t step = 5'000'000;
  for (const auto& [tokens, hidden] : kSizes)
    for (const bool has_residual : {true, false}) {
      SCOPED_TRACE(testing::Message() << tokens << " x " << hidden << " residual " << has_residual);
      const Dropout dropout =
          with_step({.probability = 0.25, .seed = 0xFEDCBA9876543210u, .site = 9, .first_token = 77}, step);
      const Values factors = defined_factors(dropout, step, tokens, hidden);
      const at::Tensor x = random_tensor({tokens, hidden}, 1, type()), weight = random_tensor({hidden}, 3, type());
      const at::Tensor residual = has_residual ? random_tensor({tokens, hidden}, 2, type()) : at::Tensor();
      const RmsNorm norm = rms_norm_forward(x, residual, weight, 1e-5, dropout);
      Values sum = product(values_of(x), factors), sizes = sum;
      const Values other = has_residual ? values_of(residual) : Values(sum.size());
      for (std::size_t i = 0; i < sum.size(); ++i) {
        sizes[i] = std::abs(sum[i]) + std::abs(other[i]);
        sum[i] += other[i];
      }
      // A product, a sum and one rounding to the model's type.
      expect_near(values_of(norm.sum), sum,
                  [&](std::size_t i) { return 3 * u() * sizes[i] + once() * std::abs(sum[i]); });
      const RmsNorm plain = rms_norm_forward(norm.sum, at::Tensor(), weight, 1e-5);
      EXPECT_TRUE(same_bits(norm.y, plain.y));
      EXPECT_TRUE(same_bits(norm.rstd, plain.rstd));
      EXPECT_TRUE(same_bits(rms_norm_apply(norm.sum, norm.rstd, weight), norm.y));

      const at::Tensor dy = random_tensor({tokens, hidden}, 4, type()),
                       dsum = random_tensor({tokens, hidden}, 5, type());
      at::Tensor dweight = random_tensor({hidden}, 6, accumulator(type())), same = dweight.clone();
      const RmsNormGradients dx = rms_norm_backward(dy, dsum, norm.sum, norm.rstd, weight, dweight, false, dropout);
      EXPECT_TRUE(same_bits(dx.residual, rms_norm_backward(dy, dsum, norm.sum, norm.rstd, weight, same, false)));
      EXPECT_TRUE(same_bits(dweight, same));
      const Values dropped = product(values_of(dx.residual), factors);
      expect_near(values_of(dx.x), dropped, [&](std::size_t i) { return (2 * u() + once()) * std::abs(dropped[i]); });
    }
}

TEST_P(DropoutOps, ARowDependsOnItsLogicalTokenOnly) {
  Dropout dropout = with_step({.probability = 0.5, .seed = 4, .site = 1, .first_token = 100}, 3);
  const at::Tensor x = random_tensor({9, 37}, 1, type()), weight = random_tensor({37}, 2, type());
  const RmsNorm all = rms_norm_forward(x, x, weight, 1e-5, dropout);
  at::Tensor dweight = random_tensor({37}, 3, accumulator(type()));
  const at::Tensor dx = rms_norm_backward(x, x, all.sum, all.rstd, weight, dweight, false, dropout).x;
  dropout.first_token = 104;
  const at::Tensor part = x.narrow(0, 4, 3);
  const RmsNorm some = rms_norm_forward(part, part, weight, 1e-5, dropout);
  EXPECT_TRUE(same_bits(all.sum.narrow(0, 4, 3), some.sum));
  EXPECT_TRUE(same_bits(dx.narrow(0, 4, 3),
                        rms_norm_backward(part, part, some.sum, some.rstd, weight, dweight, false, dropout).x));
}

TEST_P(DropoutOps, WithoutDropoutTheGradientIsOneTensor) {
  const at::Tensor x = random_tensor({3, 8}, 1, type()), weight = random_tensor({8}, 2, type());
  const RmsNorm norm = rms_norm_forward(x, at::Tensor(), weight, 1e-5, {});
  EXPECT_EQ(norm.sum.const_data_ptr(), x.const_data_ptr());
  at::Tensor dweight = random_tensor({8}, 3, accumulator(type()));
  const RmsNormGradients dx = rms_norm_backward(x, x, norm.sum, norm.rstd, weight, dweight, false, {});
  EXPECT_EQ(dx.x.const_data_ptr(), dx.residual.const_data_ptr());
}

// docs/numerics.md: values that are not finite reach the gradient's norm, also in dropped elements.
TEST_P(DropoutOps, DroppedValuesThatAreNotFiniteStayVisible) {
  const Dropout dropout = with_step({.probability = 0.9999, .seed = 1}, 1);
  for (const double value : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    const at::Tensor x = tensor_of(Values(64, value), {8, 8}, type()), weight = random_tensor({8}, 2, type());
    for (const double found : values_of(rms_norm_forward(x, at::Tensor(), weight, 1e-5, dropout).sum))
      EXPECT_FALSE(std::isfinite(found));
  }
}

TEST(DropoutGradient, EqualsFiniteDifferences) {
  const std::int64_t step = 2;
  const Dropout dropout{.probability = 0.4, .seed = 8, .site = 1, .step = &step, .first_token = 3};
  at::Tensor x = random_tensor({3, 7}, 1, at::kDouble), residual = random_tensor({3, 7}, 2, at::kDouble);
  const at::Tensor weight = random_tensor({7}, 3, at::kDouble);
  at::Tensor dweight = weight.clone();
  const at::Tensor dy = random_tensor({3, 7}, 4, at::kDouble), dsum = random_tensor({3, 7}, 5, at::kDouble);
  const auto loss = [&] {
    const RmsNorm norm = rms_norm_forward(x, residual, weight, 1e-2, dropout);
    return dot(norm.y, dy) + dot(norm.sum, dsum);
  };
  const RmsNorm norm = rms_norm_forward(x, residual, weight, 1e-2, dropout);
  const RmsNormGradients dx = rms_norm_backward(dy, dsum, norm.sum, norm.rstd, weight, dweight, false, dropout);
  const auto bound = [](std::size_t) { return 1e-8; };  // the error of central differences (token_ops_test.cpp)
  expect_near(values_of(dx.x), numeric_gradient(x, loss), bound);
  expect_near(values_of(dx.residual), numeric_gradient(residual, loss), bound);
  EXPECT_GT(count_of_zeros(values_of(dx.x)), 0);
}

TEST(Dropout, ProbabilitiesOutsideTheirRangeAndMissingStepsAreRejected) {
  const at::Tensor x = random_tensor({2, 4}, 1, at::kFloat), weight = random_tensor({4}, 2, at::kFloat);
  const std::int64_t step = 1;
  for (const double p : {-0.1, 1.0, std::numeric_limits<double>::quiet_NaN()})
    EXPECT_THROW(rms_norm_forward(x, x, weight, 1e-5, {.probability = p, .step = &step}), Error);
  EXPECT_THROW(rms_norm_forward(x, x, weight, 1e-5, {.probability = 0.5}), Error);
}

}  // namespace
}  // namespace tessera::ops::test
