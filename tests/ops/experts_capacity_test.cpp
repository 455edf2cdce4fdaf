// The capacity of experts: which choices are dropped.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>

#include "tessera/base/error.h"
#include "tessera/ops/experts/capacity.h"
#include "tests/ops/experts_values.h"

namespace tessera::ops::test {
namespace {

using testing::ElementsAre;

std::vector<std::int32_t> flat(const at::Tensor& choices) {
  const auto* data = choices.const_data_ptr<std::int32_t>();
  return {data, data + choices.numel()};
}

TEST(ExpertCapacity, RoundsUpTheFactorTimesTheMean) {
  EXPECT_EQ(capacity_of(1, 16, 2, 8), 4);
  EXPECT_EQ(capacity_of(1, 17, 2, 8), 5);
  EXPECT_EQ(capacity_of(1.25, 16, 2, 8), 5);
  EXPECT_EQ(capacity_of(0.001, 16, 2, 8), 1);
  EXPECT_EQ(capacity_of(1e300, 16, 2, 8), 16);
}

// Factors are decimal numbers: n hundredths times t tokens and k choices by e experts, compared in integers.
TEST(ExpertCapacity, IsExactForDecimalFactors) {
  for (std::int64_t n = 1; n <= 400; ++n)
    for (const std::int64_t tokens : {7, 100, 1000, 8192})
      for (const std::int64_t experts : {3, 8, 10, 60}) {
        const std::int64_t k = 2, exact = (n * tokens * k + 100 * experts - 1) / (100 * experts);
        EXPECT_EQ(capacity_of(static_cast<double>(n) / 100, tokens, k, experts),
                  std::clamp<std::int64_t>(exact, 1, tokens))
            << n << " hundredths, " << tokens << " tokens, " << experts << " experts";
      }
}

TEST(ExpertCapacity, KeepsTheLargestWeightsThenTheFirstTokens) {
  const at::Tensor choices = choices_tensor({0, 1, 0, 2, 0, 1, 0, 1}, 2);
  const at::Tensor weights = tensor_of({.5, .1, .7, .9, .5, .1, .7, .2}, {4, 2}, at::TensorOptions(at::kFloat));
  const LocalExperts all{.first = 0, .count = 3, .all = 3};
  EXPECT_THAT(flat(within_capacity(choices, weights, all, 1, 3)), ElementsAre(0, 1, 0, 2, -1, 1, 0, 1));
  EXPECT_THAT(flat(within_capacity(choices, weights, all, 1, 2)), ElementsAre(-1, 1, 0, 2, -1, -1, 0, 1));
  EXPECT_THAT(flat(within_capacity(choices, weights, all, 1, 1)), ElementsAre(-1, -1, 0, 2, -1, -1, -1, 1));
  // Each block has the capacity of its own, and the experts of other ranks are unchanged.
  EXPECT_THAT(flat(within_capacity(choices, weights, all, 2, 1)), ElementsAre(-1, 1, 0, 2, -1, -1, 0, 1));
  const LocalExperts second{.first = 1, .count = 1, .all = 3};
  EXPECT_THAT(flat(within_capacity(choices, weights, second, 1, 1)), ElementsAre(0, -1, 0, 2, 0, -1, 0, 1));
}

TEST(ExpertCapacity, DropsWeightsThatAreNaNFirst) {
  const double nan = std::nan("");
  const at::Tensor choices = choices_tensor({0, 0, 0, 0}, 1);
  const at::Tensor weights = tensor_of({nan, .1, nan, .2}, {4, 1}, at::TensorOptions(at::kDouble));
  const LocalExperts one{.first = 0, .count = 1, .all = 1};
  EXPECT_THAT(flat(within_capacity(choices, weights, one, 1, 2)), ElementsAre(-1, 0, -1, 0));
  EXPECT_THAT(flat(within_capacity(choices, weights, one, 1, 3)), ElementsAre(0, 0, -1, 0));
}

TEST(ExpertCapacity, DroppedChoicesHaveNoRow) {
  const Selection selection = select_rows(choices_tensor({0, -1, -1, 1}, 2), {.first = 0, .count = 2, .all = 2}, 1);
  EXPECT_EQ(selection.rows(), 2);
  EXPECT_THROW(select_rows(choices_tensor({-2}, 1), {.first = 0, .count = 1, .all = 1}, 1), Error);
}

}  // namespace
}  // namespace tessera::ops::test
