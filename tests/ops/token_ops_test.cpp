// Tests RMS norm, rope and swiglu, which process each token separately.
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "tessera/base/error.h"
#include "tessera/ops/norm/rms_norm.h"
#include "tessera/ops/rope/rope.h"
#include "tessera/ops/swiglu/swiglu.h"
#include "tests/ops/values.h"

namespace tessera::ops::test {
namespace {

class TokenOps : public KindTest {};
INSTANTIATE_TEST_SUITE_P(Kinds, TokenOps, testing::ValuesIn(every_kind()), name_of_kind);

// ---- RMS norm

struct NormReference {
  Values y, dx, dweight;           // exact up to fp64
  Values dx_scale, dweight_scale;  // sums of magnitudes, to which errors are relative
};
struct NormInputs {
  Values sum, dy, dsum, weight;
  std::int64_t tokens, hidden;
  double eps;
};
NormReference norm_reference(const NormInputs& in) {
  const auto h = static_cast<std::size_t>(in.hidden);
  NormReference out{.dweight = Values(h), .dweight_scale = Values(h)};
  for (std::size_t start = 0; start < in.sum.size(); start += h) {
    double squares = 0, product = 0, product_scale = 0;
    for (std::size_t i = 0; i < h; ++i) {
      const double x = in.sum[start + i], g = in.weight[i] * in.dy[start + i];
      squares += x * x;
      product += g * x;
      product_scale += std::abs(g * x);
    }
    const double r = 1 / std::sqrt(squares / static_cast<double>(h) + in.eps);
    const double cube = r * r * r / static_cast<double>(h);
    for (std::size_t i = 0; i < h; ++i) {
      const double x = in.sum[start + i], g = in.weight[i] * in.dy[start + i];
      out.y.push_back(x * r * in.weight[i]);
      out.dx.push_back(r * g - x * cube * product + in.dsum[start + i]);
      out.dx_scale.push_back(std::abs(r * g) + std::abs(x) * cube * product_scale + std::abs(in.dsum[start + i]));
      out.dweight[i] += in.dy[start + i] * x * r;
      out.dweight_scale[i] += std::abs(in.dy[start + i] * x * r);
    }
  }
  return out;
}

TEST_P(TokenOps, RmsNormEqualsTheReference) {
  for (const auto& [rows, columns] : {std::pair{3L, 1L},
                                      {1L, 3L},
                                      {5L, 17L},
                                      {4L, 129L},
                                      {2L, 256L},
                                      {0L, 16L},
                                      {600L, 72L},
                                      {9000L, 40L},
                                      {40L, 511L},
                                      {2L, 2048L},
                                      {3L, 9001L},
                                      {2L, 33000L}}) {
    const std::int64_t tokens = rows, hidden = columns;
    SCOPED_TRACE(testing::Message() << tokens << " x " << hidden);
    const at::Tensor x = random_tensor({tokens, hidden}, 1, type()),
                     residual = random_tensor({tokens, hidden}, 2, type());
    const at::Tensor weight = random_tensor({hidden}, 3, type());
    const at::Tensor dy = random_tensor({tokens, hidden}, 4, type()), dsum = random_tensor({tokens, hidden}, 5, type());
    const RmsNorm norm = rms_norm_forward(x, residual, weight, 1e-5);
    const Values xs = values_of(x), residuals = values_of(residual), sums = values_of(norm.sum);
    expect_near(
        sums,
        [&] {
          Values total = xs;
          for (std::size_t i = 0; i < total.size(); ++i) total[i] += residuals[i];
          return total;
        }(),
        [&](std::size_t i) { return (once() + u()) * std::abs(xs[i] + residuals[i]); });
    const NormReference expected = norm_reference({.sum = sums,
                                                   .dy = values_of(dy),
                                                   .dsum = values_of(dsum),
                                                   .weight = values_of(weight),
                                                   .tokens = tokens,
                                                   .hidden = hidden,
                                                   .eps = 1e-5});
    // A sum of n terms over 32 lanes and a tree is n / 32 + 6 additions deep. Each step before and after it adds one
    // rounding. The fp64 reference is n additions deep.
    const double n = static_cast<double>(hidden);
    const double error = (n / 32 + 16) * u() + (n + 16) * roundoff(at::kDouble);
    expect_near(values_of(norm.y), expected.y,
                [&](std::size_t i) { return (error + once()) * std::abs(expected.y[i]); });
    at::Tensor dweight = random_tensor({hidden}, 6, accumulator(type()));
    const at::Tensor before = dweight.clone();
    const at::Tensor dx = rms_norm_backward(dy, dsum, norm.sum, norm.rstd, weight, dweight, false);
    expect_near(values_of(dx), expected.dx,
                [&](std::size_t i) { return 4 * error * expected.dx_scale[i] + once() * std::abs(expected.dx[i]); });
    expect_near(values_of(dweight), expected.dweight, [&](std::size_t i) {
      return (error + 2 * static_cast<double>(tokens) * u()) * expected.dweight_scale[i];
    });
    at::Tensor added = before.clone();
    rms_norm_backward(dy, dsum, norm.sum, norm.rstd, weight, added, true);
    EXPECT_TRUE(same_bits(added, before.clone().add_(dweight)));
  }
}

TEST_P(TokenOps, RmsNormWithoutResidualSavesItsInputAndRecomputesTheSameBits) {
  const at::Tensor x = random_tensor({7, 33}, 1, type()), weight = random_tensor({33}, 2, type());
  const RmsNorm norm = rms_norm_forward(x, at::Tensor(), weight, 1e-6);
  EXPECT_EQ(norm.sum.const_data_ptr(), x.const_data_ptr());
  EXPECT_TRUE(same_bits(rms_norm_apply(norm.sum, norm.rstd, weight), norm.y));
  const RmsNorm zero = rms_norm_forward(x, x.clone().zero_(), weight, 1e-6);
  EXPECT_TRUE(same_bits(zero.y, norm.y));
  at::Tensor dweight = random_tensor({33}, 3, accumulator(type()));
  const at::Tensor none = rms_norm_backward(x, at::Tensor(), x, norm.rstd, weight, dweight, false);
  const at::Tensor zeros = rms_norm_backward(x, x.clone().zero_(), x, norm.rstd, weight, dweight, false);
  expect_near(values_of(none), values_of(zeros), [](std::size_t) { return 0.0; });  // -0 and +0 may differ
}

TEST_P(TokenOps, RmsNormOfARowDoesNotDependOnOtherRows) {
  const at::Tensor x = random_tensor({9, 37}, 1, type()), weight = random_tensor({37}, 2, type());
  const RmsNorm all = rms_norm_forward(x, x, weight, 1e-5);
  const RmsNorm some = rms_norm_forward(x.narrow(0, 4, 3), x.narrow(0, 4, 3), weight, 1e-5);
  EXPECT_TRUE(same_bits(all.y.narrow(0, 4, 3), some.y));
  at::Tensor dweight = random_tensor({37}, 3, accumulator(type()));
  const at::Tensor dx = rms_norm_backward(x, x, all.sum, all.rstd, weight, dweight, false);
  EXPECT_TRUE(same_bits(dx.narrow(0, 4, 3), rms_norm_backward(x.narrow(0, 4, 3), x.narrow(0, 4, 3), some.sum, some.rstd,
                                                              weight, dweight, false)));
}

// The error of central differences in fp64 is step^2 (third derivative) + roundoff / step, which is below 1e-8 at
// magnitudes near 1.
constexpr double kDifferences = 1e-8;

TEST(RmsNormGradient, EqualsFiniteDifferences) {
  at::Tensor x = random_tensor({3, 7}, 1, at::kDouble), residual = random_tensor({3, 7}, 2, at::kDouble);
  at::Tensor weight = random_tensor({7}, 3, at::kDouble), dweight = weight.clone();
  const at::Tensor dy = random_tensor({3, 7}, 4, at::kDouble), dsum = random_tensor({3, 7}, 5, at::kDouble);
  const auto loss = [&] {
    const RmsNorm norm = rms_norm_forward(x, residual, weight, 1e-2);
    return dot(norm.y, dy) + dot(norm.sum, dsum);
  };
  const RmsNorm norm = rms_norm_forward(x, residual, weight, 1e-2);
  const Values dx = values_of(rms_norm_backward(dy, dsum, norm.sum, norm.rstd, weight, dweight, false));
  const auto bound = [](std::size_t) { return kDifferences; };
  expect_near(dx, numeric_gradient(x, loss), bound);
  expect_near(dx, numeric_gradient(residual, loss), bound);
  expect_near(values_of(dweight), numeric_gradient(weight, loss), bound);
}

// ---- SwiGLU

TEST_P(TokenOps, SwigluEqualsTheReference) {
  for (const auto& [tokens, features] : {std::pair{1L, 1L}, {3L, 17L}, {2L, 129L}, {0L, 8L}, {4L, 0L}, {5L, 1032L}}) {
    SCOPED_TRACE(testing::Message() << tokens << " x " << features);
    const at::Tensor gate_up = random_tensor({tokens, 2 * features}, 1, type(), 12.0);
    const at::Tensor dout = random_tensor({tokens, features}, 2, type());
    const at::Tensor got = swiglu_forward(gate_up), gradient = swiglu_backward(dout, gate_up);
    const SwigluBackward again = swiglu_backward_with_output(dout, gate_up);
    EXPECT_TRUE(same_bits(again.out, got));
    EXPECT_TRUE(same_bits(again.gradient, gradient));
    const Values in = values_of(gate_up), ds = values_of(dout);
    const auto f = static_cast<std::size_t>(features);
    Values out(ds.size()), din(in.size()), din_scale(in.size());
    for (std::size_t i = 0; i < ds.size(); ++i) {
      const std::size_t at = i / f * 2 * f + i % f;
      const double g = in[at], up = in[at + f], s = 1 / (1 + std::exp(-g));
      out[i] = g * s * up;
      din[at] = ds[i] * up * s * (1 + g * (1 - s));
      din_scale[at] = std::abs(ds[i] * up) * s * (1 + std::abs(g));  // 1 - s is exact up to one rounding of s
      din[at + f] = ds[i] * g * s;
      din_scale[at + f] = std::abs(din[at + f]);
    }
    // The error of exp is at most 1.1 units, which is below 3u; at most six operations follow.
    expect_near(values_of(got), out, [&](std::size_t i) { return (10 * u() + once()) * std::abs(out[i]); });
    expect_near(values_of(gradient), din,
                [&](std::size_t i) { return 16 * u() * din_scale[i] + once() * std::abs(din[i]); });
  }
}

TEST_P(TokenOps, SwigluDoesNotDependOnPosition) {
  constexpr std::int64_t features = 67;
  const at::Tensor gate_up = random_tensor({1, 2 * features}, 1, type(), 6.0);
  const at::Tensor dout = random_tensor({1, features}, 2, type());
  const at::Tensor out = swiglu_forward(gate_up), gradient = swiglu_backward(dout, gate_up);
  for (std::int64_t begin = 0; begin < 18; ++begin) {
    for (const std::int64_t count : {1L, 7L, 16L, 33L, 49L}) {
      at::Tensor cut = random_tensor({1, 2 * count}, 3, type());
      cut.narrow(1, 0, count).copy_(gate_up.narrow(1, begin, count));
      cut.narrow(1, count, count).copy_(gate_up.narrow(1, features + begin, count));
      EXPECT_TRUE(same_bits(swiglu_forward(cut), out.narrow(1, begin, count))) << begin << " " << count;
      const at::Tensor part = swiglu_backward(dout.narrow(1, begin, count), cut);
      EXPECT_TRUE(same_bits(part.narrow(1, 0, count), gradient.narrow(1, begin, count)));
      EXPECT_TRUE(same_bits(part.narrow(1, count, count), gradient.narrow(1, features + begin, count)));
    }
  }
}

TEST_P(TokenOps, SwigluOfLargeGatesIsFinite) {
  const at::Tensor gate_up = tensor_of({-200, -90, 90, 200, 1, 1, 1, 1}, {1, 8}, type());
  const Values out = values_of(swiglu_forward(gate_up));
  EXPECT_NEAR(out[0], 0, 1e-30);
  EXPECT_NEAR(out[1], 0, 1e-30);
  EXPECT_EQ(out[2], 90);
  EXPECT_EQ(out[3], 200);
  for (const double value : values_of(swiglu_backward(gate_up.narrow(1, 4, 4), gate_up)))
    EXPECT_TRUE(std::isfinite(value));
}

TEST(SwigluGradient, EqualsFiniteDifferences) {
  at::Tensor gate_up = random_tensor({2, 10}, 1, at::kDouble, 3.0);
  const at::Tensor dout = random_tensor({2, 5}, 2, at::kDouble);
  const Values gradient = values_of(swiglu_backward(dout, gate_up));
  expect_near(gradient, numeric_gradient(gate_up, [&] { return dot(swiglu_forward(gate_up), dout); }),
              [](std::size_t) { return kDifferences; });
}

TEST(Swiglu, RejectsOddColumns) {
  EXPECT_THROW(swiglu_forward(random_tensor({2, 3}, 1, at::kFloat)), Error);
}

// ---- Rope

struct RopeCase {
  std::int64_t q_heads, kv_heads, head_dim;
};

TEST_P(TokenOps, RopeEqualsRotationOfPairs) {
  const std::vector<std::int64_t> positions = {0, 5, 1, 511, 2};
  for (const RopeCase& c : {RopeCase{3, 1, 6}, {2, 2, 34}, {0, 1, 4}, {2, 0, 4}, {1, 1, 2}, {4, 2, 128}}) {
    SCOPED_TRACE(testing::Message() << c.q_heads << " " << c.kv_heads << " " << c.head_dim);
    const RopeTable table = make_rope_table(512, c.head_dim, 10000.0, {}, GetParam().type, GetParam().device);
    const std::int64_t width = (c.q_heads + 2 * c.kv_heads) * c.head_dim,
                       rotated = (c.q_heads + c.kv_heads) * c.head_dim;
    const at::Tensor qkv = random_tensor({5, width}, 1, type());
    const Qkv parts = split_rope_forward(qkv, ids(positions), table, c.q_heads, c.kv_heads, c.head_dim);
    const Values in = values_of(qkv);
    Values expected = in, scale(in.size());
    for (std::size_t token = 0; token < positions.size(); ++token) {
      for (std::int64_t column = 0; column < rotated; ++column) {
        const std::int64_t within = column % c.head_dim, half = c.head_dim / 2, pair = within % half;
        const double angle = static_cast<double>(positions[token]) *
                             std::pow(10000.0, -2.0 * static_cast<double>(pair) / static_cast<double>(c.head_dim));
        const std::size_t here = token * static_cast<std::size_t>(width) + static_cast<std::size_t>(column);
        const std::size_t there =
            within < half ? here + static_cast<std::size_t>(half) : here - static_cast<std::size_t>(half);
        expected[here] = in[here] * std::cos(angle) + (within < half ? -1 : 1) * in[there] * std::sin(angle);
        scale[here] = std::abs(in[here]) + std::abs(in[there]);
      }
    }
    Values got;
    for (std::int64_t token = 0; token < 5; ++token)
      for (const at::Tensor& part : {parts.q, parts.k, parts.v})
        for (const double value : values_of(part.narrow(0, token, 1))) got.push_back(value);
    // The table, two products and one sum are each rounded once.
    const auto bound = [&](std::size_t i) { return 4 * u() * scale[i] + once() * std::abs(expected[i]); };
    expect_near(got, expected, bound);
    // The transpose of a rotation is its inverse, so backward returns the input with the errors of both directions.
    const at::Tensor back = split_rope_backward(parts, ids(positions), table);
    expect_near(values_of(back), in, [&](std::size_t i) { return 8 * (u() + once()) * scale[i]; });
  }
}

TEST(RopeGradient, EqualsFiniteDifferences) {
  const RopeTable table = make_rope_table(16, 4, 100.0, {}, at::kDouble);
  const at::Tensor positions = ids_tensor({0, 3, 15});
  at::Tensor qkv = random_tensor({3, 16}, 1, at::kDouble);
  const Qkv gradient{.q = random_tensor({3, 2, 4}, 2, at::kDouble),
                     .k = random_tensor({3, 1, 4}, 3, at::kDouble),
                     .v = random_tensor({3, 1, 4}, 4, at::kDouble)};
  const auto loss = [&] {
    const Qkv out = split_rope_forward(qkv, positions, table, 2, 1, 4);
    return dot(out.q, gradient.q) + dot(out.k, gradient.k) + dot(out.v, gradient.v);
  };
  expect_near(values_of(split_rope_backward(gradient, positions, table)), numeric_gradient(qkv, loss),
              [](std::size_t) { return kDifferences; });
}

// The definition of "llama3" by wavelengths: long waves are divided by the factor, short waves are kept, and waves
// between them are blended linearly.
TEST(RopeTable, ScalesFrequenciesAsLlama3) {
  const RopeScaling scaling{.factor = 8, .low_freq_factor = 1, .high_freq_factor = 4, .original_max_position = 8192};
  const RopeTable plain = make_rope_table(2, 128, 500000.0, {}, at::kDouble);
  const RopeTable scaled = make_rope_table(2, 128, 500000.0, scaling, at::kDouble);
  const Values before = values_of(plain.sine), after = values_of(scaled.sine), cosine = values_of(plain.cosine);
  int kept = 0, blended = 0, divided = 0;
  for (std::size_t i = 64; i < 128; ++i) {  // at position 1 the angle is the frequency
    const double frequency = std::atan2(before[i], cosine[i]), wave = 2 * std::numbers::pi / frequency;
    double expected = frequency;
    if (wave > 8192) {
      expected = frequency / 8;
      ++divided;
    } else if (wave >= 8192.0 / 4) {
      const double smooth = (8192 / wave - 1) / (4 - 1);
      expected = (1 - smooth) * frequency / 8 + smooth * frequency;
      ++blended;
    } else {
      ++kept;
    }
    EXPECT_NEAR(after[i], std::sin(expected), 1e-14);
  }
  EXPECT_GT(kept, 0);
  EXPECT_GT(blended, 0);
  EXPECT_GT(divided, 0);
}

TEST(Rope, ADryTableHasOnlyShapes) {
  const RopeTable table = make_rope_table(std::int64_t{1} << 40, 6, 10000.0, {}, at::kBFloat16, at::kMeta);
  for (const at::Tensor& each : {table.cosine, table.sine}) {
    EXPECT_TRUE(each.is_meta());
    EXPECT_EQ(each.sizes(), (at::IntArrayRef{std::int64_t{1} << 40, 3}));
    EXPECT_EQ(each.scalar_type(), at::kFloat);
  }
}

TEST(Rope, RejectsOddHeadsAndPositionsOutsideTheTable) {
  EXPECT_THROW(make_rope_table(4, 5, 10000.0, {}, at::kFloat), Error);
  const RopeTable table = make_rope_table(4, 6, 10000.0, {}, at::kFloat);
  const at::Tensor qkv = random_tensor({2, 18}, 1, at::kFloat);
  EXPECT_NO_THROW(split_rope_forward(qkv, ids_tensor({0, 3}), table, 1, 1, 6));
  EXPECT_THROW(split_rope_forward(qkv, ids_tensor({0, 4}), table, 1, 1, 6), Error);
  EXPECT_THROW(split_rope_forward(qkv, ids_tensor({-1, 0}), table, 1, 1, 6), Error);
  EXPECT_THROW(split_rope_forward(qkv, ids_tensor({0, 1}), table, 2, 1, 6), Error);
}

}  // namespace
}  // namespace tessera::ops::test
