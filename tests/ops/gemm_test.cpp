#include <gtest/gtest.h>

#include <cmath>

#include "tessera/base/error.h"
#include "tessera/ops/gemm/gemm.h"
#include "tests/ops/values.h"

namespace tessera::ops::test {
namespace {

struct Extents {
  std::int64_t tokens, out, in;
};

// a [rows, terms], b [cols, terms]: the sum, and the sum of magnitudes, of a[r, t] b[c, t].
struct Product {
  Values value, magnitude;
};
struct Side {  // element (row, term) of a reference operand
  const Values& values;
  std::int64_t row_step, term_step;
  double at(std::int64_t row, std::int64_t term) const {
    return values[static_cast<std::size_t>(row * row_step + term * term_step)];
  }
};
Product multiply(const Side& a, const Side& b, const Extents& e) {  // e: rows, cols, terms
  Product product;
  for (std::int64_t row = 0; row < e.tokens; ++row) {
    for (std::int64_t col = 0; col < e.out; ++col) {
      double value = 0, magnitude = 0;
      for (std::int64_t term = 0; term < e.in; ++term) {
        value += a.at(row, term) * b.at(col, term);
        magnitude += std::abs(a.at(row, term) * b.at(col, term));
      }
      product.value.push_back(value);
      product.magnitude.push_back(magnitude);
    }
  }
  return product;
}

// The error of a sum of n rounded products in any order is at most (n + 1) u times the sum of magnitudes (Higham 2002,
// 3.5). The fp64 reference has the same error with its own u. The result is rounded once to its type.
void expect_product(const at::Tensor& got, const Product& expected, std::int64_t terms, at::ScalarType type) {
  const double sums = static_cast<double>(terms + 1) * (accumulator_roundoff(type) + roundoff(at::kDouble));
  const double once = got.scalar_type() == accumulator(type) ? 0 : 1.01 * roundoff(got.scalar_type());
  expect_near(values_of(got), expected.value,
              [&](std::size_t i) { return sums * expected.magnitude[i] + once * std::abs(expected.value[i]) + 1e-37; });
}

class Gemm : public KindTest {};
INSTANTIATE_TEST_SUITE_P(Kinds, Gemm, testing::ValuesIn(every_kind()), name_of_kind);

TEST_P(Gemm, EqualsTheReferenceForOddAndEmptyShapes) {
  const Extents shapes[] = {{1, 1, 1},  {3, 17, 129}, {129, 3, 17}, {17, 129, 3}, {64, 48, 32},
                            {0, 17, 3}, {17, 0, 3},   {3, 17, 0},   {0, 0, 5},    {129, 129, 129}};
  for (const Extents& e : shapes) {
    SCOPED_TRACE(testing::Message() << "tokens " << e.tokens << " out " << e.out << " in " << e.in);
    const at::Tensor x = random_tensor({e.tokens, e.in}, 1, type());
    const at::Tensor w = random_tensor({e.out, e.in}, 2, type());
    const at::Tensor dy = random_tensor({e.tokens, e.out}, 3, type());
    const Values xs = values_of(x), ws = values_of(w), dys = values_of(dy);

    const at::Tensor y = gemm_fprop(x, w);
    EXPECT_EQ(y.scalar_type(), GetParam().type);
    expect_product(y, multiply({xs, e.in, 1}, {ws, e.in, 1}, e), e.in, GetParam().type);

    const at::Tensor dx = gemm_dgrad(dy, w);
    EXPECT_EQ(dx.scalar_type(), GetParam().type);
    expect_product(dx, multiply({dys, e.out, 1}, {ws, 1, e.in}, {e.tokens, e.in, e.out}), e.out, GetParam().type);

    at::Tensor dw = random_tensor({e.out, e.in}, 4, accumulator(type()));
    const at::Tensor before = dw.clone();
    gemm_wgrad(dy, x, dw, false);
    expect_product(dw, multiply({dys, 1, e.out}, {xs, 1, e.in}, {e.out, e.in, e.tokens}), e.tokens, GetParam().type);

    for (const at::ScalarType wire : {GetParam().type, at::kBFloat16}) {
      at::Tensor rounded = random_tensor({e.out, e.in}, 4, type().dtype(wire));
      gemm_wgrad(dy, x, rounded, false);
      EXPECT_EQ(rounded.scalar_type(), wire);
      expect_product(rounded, multiply({dys, 1, e.out}, {xs, 1, e.in}, {e.out, e.in, e.tokens}), e.tokens,
                     GetParam().type);
      if (type().device() == at::kCPU) {
        EXPECT_TRUE(same_bits(rounded, dw.to(wire)));
      }
    }

    at::Tensor sum = before.clone();
    gemm_wgrad(dy, x, sum, true);
    EXPECT_TRUE(same_bits(sum, before.clone().add_(dw))) << "the product is not computed alone and then added";
  }
}

// fprop sums over the inputs, dgrad over the outputs, and wgrad over the tokens. The extents give each of these
// products long sums, which the libraries may divide into parts.
TEST_P(Gemm, HasTheSameBitsAtEveryAddress) {
  for (const Extents& e : {Extents{37, 65, 130}, {37, 65, 2056}, {37, 2056, 65}, {2056, 37, 65}}) {
    SCOPED_TRACE(testing::Message() << "tokens " << e.tokens << " out " << e.out << " in " << e.in);
    const at::Tensor x = random_tensor({e.tokens, e.in}, 5, type()), w = random_tensor({e.out, e.in}, 6, type());
    const at::Tensor dy = random_tensor({e.tokens, e.out}, 7, type());
    at::Tensor dw = random_tensor({e.out, e.in}, 8, accumulator(type()));
    gemm_wgrad(dy, x, dw, false);
    const at::Tensor y = gemm_fprop(x, w), dx = gemm_dgrad(dy, w);
    for (const std::int64_t offset : {0, 1, 5, 32, 64, 128}) {
      SCOPED_TRACE(testing::Message() << "offset " << offset);
      const at::Tensor x2 = shifted(x, offset), w2 = shifted(w, offset + 1), dy2 = shifted(dy, offset * 2);
      at::Tensor dw2 = shifted(dw, offset).fill_(77);
      gemm_wgrad(dy2, x2, dw2, false);
      EXPECT_TRUE(same_bits(gemm_fprop(x2, w2), y));
      EXPECT_TRUE(same_bits(gemm_dgrad(dy2, w2), dx));
      at::Tensor y2 = shifted(y, offset * 3).fill_(77), dx2 = shifted(dx, offset * 3).fill_(77);
      gemm_fprop_to(x2, w2, y2);
      gemm_dgrad_to(dy2, w2, dx2);
      EXPECT_TRUE(same_bits(y2, y) && same_bits(dx2, dx));
      EXPECT_TRUE(same_bits(dw2, dw));
    }
  }
}

// The products have few rows and long sums, which a GPU divides into parts. Sums of small integers are the same in
// every order, but they differ if a part is first rounded to the type of the result.
TEST_P(Gemm, RoundsLongSumsOnce) {
  for (const Extents& e : {Extents{64, 64, 2056}, {33, 7, 4104}, {1, 64, 8232}}) {
    SCOPED_TRACE(testing::Message() << "tokens " << e.tokens << " out " << e.out << " in " << e.in);
    const auto whole = [&](std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
      Values values = random_values(rows * cols, seed, 4.0);
      for (double& value : values) value = std::floor(value) + 1;
      return tensor_of(values, {rows, cols}, type());
    };
    const at::Tensor a = whole(e.tokens, e.in, 1), b = whole(e.out, e.in, 2);
    const Values as = values_of(a), bs = values_of(b);
    const auto exact = tensor_of(multiply({as, e.in, 1}, {bs, e.in, 1}, e).value, {e.tokens, e.out}, type());
    EXPECT_TRUE(same_bits(gemm_fprop(a, b), exact));
    EXPECT_TRUE(same_bits(gemm_dgrad(a, b.t().contiguous()), exact));
    at::Tensor dw = exact.clone().fill_(77);
    gemm_wgrad(a.t().contiguous(), b.t().contiguous(), dw, false);
    EXPECT_TRUE(same_bits(dw, exact));
  }
}

TEST_P(Gemm, AcceptsStridedOperands) {
  const at::Tensor wide = random_tensor({19, 40}, 9, type()), w = random_tensor({11, 20}, 10, type());
  const at::Tensor x = wide.narrow(1, 7, 20);
  EXPECT_TRUE(same_bits(gemm_fprop(x, w), gemm_fprop(x.clone(at::MemoryFormat::Contiguous), w)));
  const at::Tensor turned = random_tensor({20, 11}, 11, type()).t();
  EXPECT_TRUE(same_bits(gemm_fprop(x, turned), gemm_fprop(x, turned.clone(at::MemoryFormat::Contiguous))));
}

TEST_P(Gemm, RejectsMismatchedOperands) {
  const at::Tensor x = random_tensor({4, 5}, 1, type()), w = random_tensor({3, 6}, 2, type());
  EXPECT_THROW(gemm_fprop(x, w), Error);
  EXPECT_THROW(gemm_dgrad(x, w), Error);
  at::Tensor dw = random_tensor({5, 4}, 3, accumulator(type()));
  EXPECT_THROW(gemm_wgrad(x, x, dw, false), Error);  // dw must be [5, 5]
  EXPECT_THROW(gemm_fprop(x, at::Tensor()), Error);
  const at::ScalarType other = GetParam().type == at::kFloat ? at::kDouble : at::kFloat;
  EXPECT_THROW(gemm_fprop(x, random_tensor({3, 5}, 2, type().dtype(other))), Error);
  if (type().device() != at::kCPU) {
    EXPECT_THROW(gemm_fprop(x, random_tensor({3, 5}, 2, GetParam().type)), Error);  // on the CPU
  }
}

// Rounding the product to bf16 would lose bits that main_grad must keep.
TEST(GemmWgrad, KeepsFp32OfBf16Inputs) {
  const at::Tensor dy = tensor_of({1.0, 1.0}, {2, 1}, at::kBFloat16);
  const at::Tensor x = tensor_of({1.0, 0x1p-12}, {2, 1}, at::kBFloat16);
  at::Tensor dw = tensor_of({0}, {1, 1}, at::kFloat);
  gemm_wgrad(dy, x, dw, false);
  EXPECT_EQ(values_of(dw)[0], 1.0 + 0x1p-12);
}

}  // namespace
}  // namespace tessera::ops::test
