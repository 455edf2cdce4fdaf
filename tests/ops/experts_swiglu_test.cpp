// Tests SwiGLU of the rows of experts, multiplied by their routing weights.
#include <cmath>
#include <limits>

#include "tessera/base/error.h"
#include "tessera/ops/experts/weighted_swiglu.h"
#include "tests/ops/experts_values.h"

namespace tessera::ops::test {
namespace {

class WeightedSwiglu : public KindTest {};
INSTANTIATE_TEST_SUITE_P(Kinds, WeightedSwiglu, testing::ValuesIn(cpu_kinds()), name_of_kind);

// The rows behind the last are NaN in every operand.
struct SwigluInputs {
  at::Tensor gate_up, weights, dout;
};
SwigluInputs random_operands(const Selection& selection, std::int64_t features, const at::TensorOptions& type) {
  at::Tensor gate_up = random_rows(selection, 2 * features, 1, type);
  gate_up.mul_(6);
  return {.gate_up = gate_up,
          .weights = random_rows(selection, 1, 2, accumulator(type)).flatten(),
          .dout = random_rows(selection, features, 3, type)};
}

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

// sigmoid has an error of 2.2 u from the exponential function and 2 u from the sum and the quotient; three products
// follow. With up to four more operations in the gradients, 12 u of the magnitudes bound each element. fp64 has its own
// reference error.
double element_error(double u) {
  return 12 * (u + roundoff(at::kDouble));
}

TEST_P(WeightedSwiglu, ForwardEqualsTheReference) {
  for (const ExpertsCase& it : experts_cases())
    for (const std::int64_t features : {0, 1, 5, 33, 129}) {
      SCOPED_TRACE(testing::Message() << it << ", " << features << " features");
      const Selection selection = it.select(4);
      const SwigluInputs in = random_operands(selection, features, type());
      const Values values = values_of(in.gate_up), weights = values_of(in.weights);
      Values expected;
      for (std::int64_t row = 0; row < selection.rows(); ++row)
        for (std::int64_t i = 0; i < features; ++i) {
          const double gate = values[static_cast<std::size_t>(row * 2 * features + i)],
                       up = values[static_cast<std::size_t>(row * 2 * features + features + i)];
          expected.push_back(gate * sigmoid(gate) * up * weights[static_cast<std::size_t>(row)]);
        }
      const at::Tensor out = weighted_swiglu(in.gate_up, in.weights, selection);
      EXPECT_EQ(out.scalar_type(), GetParam().type);
      EXPECT_EQ(out.sizes(), (at::IntArrayRef{selection.room, features}));
      const double rounding = GetParam().type == at::kBFloat16 ? once() : 0;
      expect_near(values_of(used(out, selection)), expected,
                  [&](std::size_t i) { return (element_error(u()) + rounding) * std::abs(expected[i]); });
    }
}

// With s = sigmoid(gate): dgate = dout w up s (1 + gate (1 - s)), dup = dout w gate s, and the gradient of the row's
// weight is the sum of dout gate s up.
TEST_P(WeightedSwiglu, BackwardEqualsTheFormula) {
  for (const ExpertsCase& it : experts_cases())
    for (const std::int64_t features : {0, 1, 5, 33, 129}) {
      SCOPED_TRACE(testing::Message() << it << ", " << features << " features");
      const Selection selection = it.select(5);
      const SwigluInputs in = random_operands(selection, features, type());
      const Values values = values_of(in.gate_up), weights = values_of(in.weights), douts = values_of(in.dout);
      Values gradient, scale, dweights, dweight_scale;
      for (std::int64_t row = 0; row < selection.rows(); ++row) {
        Values ups, up_scale;
        double sum = 0, sum_scale = 0;
        for (std::int64_t i = 0; i < features; ++i) {
          const double gate = values[static_cast<std::size_t>(row * 2 * features + i)],
                       up = values[static_cast<std::size_t>(row * 2 * features + features + i)],
                       dout = douts[static_cast<std::size_t>(row * features + i)], s = sigmoid(gate);
          const double d = dout * weights[static_cast<std::size_t>(row)];
          gradient.push_back(d * up * s * (1 + gate * (1 - s)));
          scale.push_back(std::abs(d * up) * s * (1 + std::abs(gate)));
          ups.push_back(d * gate * s);
          up_scale.push_back(std::abs(d * gate * s));
          sum += dout * gate * s * up;
          sum_scale += std::abs(dout * gate * s * up);
        }
        gradient.insert(gradient.end(), ups.begin(), ups.end());
        scale.insert(scale.end(), up_scale.begin(), up_scale.end());
        dweights.push_back(sum);
        dweight_scale.push_back(sum_scale);
      }
      const WeightedSwigluGradients got =
          weighted_swiglu_backward(in.dout, in.gate_up, in.weights, selection, /*with_output=*/false);
      EXPECT_EQ(got.gate_up.scalar_type(), GetParam().type);
      EXPECT_EQ(got.weights.scalar_type(), accumulator(GetParam().type));
      EXPECT_FALSE(got.out.defined());
      const double rounding = GetParam().type == at::kBFloat16 ? once() : 0;
      expect_near(values_of(used(got.gate_up, selection)), gradient,
                  [&](std::size_t i) { return element_error(u()) * scale[i] + rounding * std::abs(gradient[i]); });
      // A sum over 32 lanes and a tree; the reference is one chain.
      const double depth = static_cast<double>(features) / 32 + 6;
      const double error = element_error(u()) + depth * u() + static_cast<double>(features) * roundoff(at::kDouble);
      expect_near(values_of(used(got.weights, selection)), dweights,
                  [&](std::size_t i) { return error * dweight_scale[i]; });
    }
}

// The error of central differences is below 1e-8 at magnitudes near 1 (token_ops_test.cpp).
TEST(WeightedSwigluBackward, EqualsFiniteDifferences) {
  const Selection selection = select_rows(choices_tensor({0, 1, 1, 0, 1, 0}, 2), {.first = 0, .count = 2, .all = 2}, 1);
  const at::Tensor gate_up = random_tensor({6, 10}, 6, at::kDouble), dout = random_tensor({6, 5}, 7, at::kDouble);
  const at::Tensor weights = random_tensor({6}, 8, at::kDouble);
  const auto loss = [&] { return dot(weighted_swiglu(gate_up, weights, selection), dout); };
  const WeightedSwigluGradients got = weighted_swiglu_backward(dout, gate_up, weights, selection, false);
  const auto bound = [](std::size_t) { return 1e-8; };
  expect_near(values_of(got.gate_up), numeric_gradient(gate_up, loss), bound);
  expect_near(values_of(got.weights), numeric_gradient(weights, loss), bound);
}

TEST_P(WeightedSwiglu, BackwardRecomputesTheBitsOfForward) {
  const Selection selection = experts_cases()[0].select(9);
  const SwigluInputs in = random_operands(selection, 37, type());
  const WeightedSwigluGradients again =
      weighted_swiglu_backward(in.dout, in.gate_up, in.weights, selection, /*with_output=*/true);
  EXPECT_TRUE(
      same_bits(used(again.out, selection), used(weighted_swiglu(in.gate_up, in.weights, selection), selection)));
  const WeightedSwigluGradients once = weighted_swiglu_backward(in.dout, in.gate_up, in.weights, selection, false);
  EXPECT_TRUE(same_bits(used(again.gate_up, selection), used(once.gate_up, selection)));
  EXPECT_TRUE(same_bits(used(again.weights, selection), used(once.weights, selection)));
}

TEST_P(WeightedSwiglu, BitsOfARowDoNotDependOnOtherRows) {
  const Selection selection = experts_cases()[5].select(10);
  const Selection one = select_rows(choices_tensor({0}, 1), {.first = 0, .count = 1, .all = 1}, 1);
  const SwigluInputs in = random_operands(selection, 37, type());
  const at::Tensor out = weighted_swiglu(in.gate_up, in.weights, selection);
  const WeightedSwigluGradients all = weighted_swiglu_backward(in.dout, in.gate_up, in.weights, selection, false);
  ASSERT_GT(selection.rows(), 3);
  for (std::int64_t row = 0; row < selection.rows(); ++row) {
    const at::Tensor gate_up = in.gate_up.narrow(0, row, 1), weights = in.weights.narrow(0, row, 1);
    EXPECT_TRUE(same_bits(weighted_swiglu(gate_up, weights, one), out.narrow(0, row, 1)));
    const WeightedSwigluGradients own =
        weighted_swiglu_backward(in.dout.narrow(0, row, 1), gate_up, weights, one, false);
    EXPECT_TRUE(same_bits(own.gate_up, all.gate_up.narrow(0, row, 1)));
    EXPECT_TRUE(same_bits(own.weights, all.weights.narrow(0, row, 1)));
  }
}

TEST_P(WeightedSwiglu, KeepsNaNInItsRow) {
  const Selection selection = experts_cases()[0].select(11);
  const SwigluInputs in = random_operands(selection, 7, type());
  ASSERT_GT(selection.rows(), 2);
  in.weights[1].fill_(std::nan(""));
  const Values out = values_of(used(weighted_swiglu(in.gate_up, in.weights, selection), selection));
  for (std::size_t i = 0; i < out.size(); ++i) EXPECT_EQ(std::isnan(out[i]), i / 7 == 1) << "element " << i;
}

// silu of a large negative gate is 0, not NaN.
TEST_P(WeightedSwiglu, IsFiniteForLargeGates) {
  const Selection one = select_rows(choices_tensor({0}, 1), {.first = 0, .count = 1, .all = 1}, 1);
  const at::Tensor gate_up = tensor_of({-1000, 1000, 2, 2}, {1, 4}, type());
  const at::Tensor weights = tensor_of({0.5}, {1}, accumulator(type())), dout = tensor_of({1, 1}, {1, 2}, type());
  EXPECT_EQ(values_of(weighted_swiglu(gate_up, weights, one)), (Values{0, 1000}));
  const WeightedSwigluGradients got = weighted_swiglu_backward(dout, gate_up, weights, one, false);
  EXPECT_EQ(values_of(got.gate_up), (Values{0, 1, 0, 500}));
  EXPECT_EQ(values_of(got.weights), (Values{2000}));
}

TEST_P(WeightedSwiglu, RejectsMismatchedOperands) {
  const Selection selection = experts_cases()[0].select(12);
  const SwigluInputs in = random_operands(selection, 4, type());
  const std::int64_t room = selection.room;
  EXPECT_THROW(weighted_swiglu(random_tensor({room, 7}, 1, type()), in.weights, selection), Error);
  EXPECT_THROW(weighted_swiglu(random_tensor({room + 1, 8}, 1, type()), in.weights, selection), Error);
  EXPECT_THROW(weighted_swiglu(in.gate_up, random_tensor({room - 1}, 1, accumulator(type())), selection), Error);
  const at::ScalarType other = GetParam().type == at::kDouble ? at::kFloat : at::kDouble;
  EXPECT_THROW(weighted_swiglu(in.gate_up, in.weights.to(other), selection), Error);
  EXPECT_THROW(weighted_swiglu_backward(in.gate_up, in.gate_up, in.weights, selection, false), Error);
  EXPECT_THROW(weighted_swiglu_backward(in.dout.to(other), in.gate_up, in.weights, selection, false), Error);
}

TEST_P(WeightedSwiglu, HasTheShapesOfARealRunInADryRun) {
  for (const ExpertsCase& it : experts_cases()) {
    SCOPED_TRACE(it);
    const Selection dry = select_rows(dry_tensor({it.tokens(), it.k}, at::kInt), it.local, it.blocks);
    const at::Tensor gate_up = dry_tensor({dry.room, 14}, type()), dout = dry_tensor({dry.room, 7}, type());
    const at::Tensor weights = dry_tensor({dry.room}, accumulator(type()));
    const std::vector<Work> work = work_of([&] {
      EXPECT_EQ(weighted_swiglu(gate_up, weights, dry).sizes(), (at::IntArrayRef{dry.room, 7}));
      for (const bool again : {false, true}) {
        const WeightedSwigluGradients got = weighted_swiglu_backward(dout, gate_up, weights, dry, again);
        EXPECT_EQ(got.gate_up.sizes(), gate_up.sizes());
        EXPECT_EQ(got.weights.sizes(), weights.sizes());
        EXPECT_EQ(got.out.defined(), again);
        if (again) {
          EXPECT_EQ(got.out.sizes(), dout.sizes());
        }
      }
    });
    ASSERT_EQ(work.size(), 3u);
    const double unit = static_cast<double>(dry.expected * 7) * static_cast<double>(c10::elementSize(GetParam().type));
    EXPECT_EQ(work[0].bytes, 3 * unit);
    EXPECT_EQ(work[1].bytes, 5 * unit);
    EXPECT_EQ(work[2].bytes, 6 * unit);
  }
}

}  // namespace
}  // namespace tessera::ops::test
