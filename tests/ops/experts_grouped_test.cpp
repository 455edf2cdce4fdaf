// Tests the matrix products of experts.
#include <ATen/record_function.h>

#include <array>
#include <cmath>
#include <memory>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/ops/gemm/gemm.h"
#include "tessera/ops/grouped/grouped.h"
#include "tests/ops/experts_values.h"

namespace tessera::ops::test {
namespace {

class Grouped : public KindTest {};
INSTANTIATE_TEST_SUITE_P(Kinds, Grouped, testing::ValuesIn(cpu_kinds()), name_of_kind);

// The error of a sum of n rounded products in any order is at most (n + 1) u times the sum of magnitudes. The fp64
// reference has the same error with its own u. The result is rounded once to its type.
struct ProductBound {
  Values value, magnitude;
  Values terms;  // error of each element

  void add(std::size_t element, double product) {
    value[element] += product;
    magnitude[element] += std::abs(product);
    terms[element] += 1;
  }
  void expect(const at::Tensor& got, at::ScalarType operands) const {
    const double u = accumulator_roundoff(operands) + roundoff(at::kDouble);
    const double once = got.scalar_type() == accumulator(operands) ? 0 : 1.01 * roundoff(got.scalar_type());
    expect_near(values_of(got), value,
                [&](std::size_t i) { return 1.01 * (terms[i] + 1) * u * magnitude[i] + once * std::abs(value[i]); });
  }
};
ProductBound bound_of(std::int64_t elements) {
  const auto count = static_cast<std::size_t>(elements);
  return {.value = Values(count), .magnitude = Values(count), .terms = Values(count)};
}

struct Widths {
  std::int64_t out, in;
};
constexpr Widths kWidths[] = {{3, 5}, {17, 33}, {1, 1}, {0, 5}, {64, 16}};

TEST_P(Grouped, FpropAndDgradEqualTheReference) {
  for (const ExpertsCase& it : experts_cases())
    for (const auto& [out, in] : kWidths) {
      SCOPED_TRACE(testing::Message() << it << ", out " << out << ", in " << in);
      const Selection selection = it.select(1);
      const at::Tensor x = random_rows(selection, in, 2, type()), dy = random_rows(selection, out, 3, type());
      const at::Tensor w = random_tensor({it.local.count * out, in}, 4, type());
      const Values xs = values_of(x), dys = values_of(dy), ws = values_of(w);
      ProductBound y = bound_of(selection.rows() * out), dx = bound_of(selection.rows() * in);
      std::int64_t row = 0;
      for (const ReferenceRow& source : rows_of(selection)) {
        for (std::int64_t o = 0; o < out; ++o)
          for (std::int64_t i = 0; i < in; ++i) {
            const double weight = ws[static_cast<std::size_t>((source.expert * out + o) * in + i)];
            const auto at_out = static_cast<std::size_t>(row * out + o), at_in = static_cast<std::size_t>(row * in + i);
            y.add(at_out, xs[at_in] * weight);
            dx.add(at_in, dys[at_out] * weight);
          }
        ++row;
      }
      const at::Tensor got_y = grouped_fprop(x, w, selection), got_dx = grouped_dgrad(dy, w, selection);
      EXPECT_EQ(got_y.scalar_type(), GetParam().type);
      EXPECT_EQ(got_dx.scalar_type(), GetParam().type);
      EXPECT_EQ(got_y.sizes(), (at::IntArrayRef{selection.room, it.local.count == 0 ? 0 : out}));
      EXPECT_EQ(got_dx.sizes(), (at::IntArrayRef{selection.room, in}));
      y.expect(used(got_y, selection), GetParam().type);
      dx.expect(used(got_dx, selection), GetParam().type);
    }
}

TEST_P(Grouped, WgradEqualsTheReference) {
  for (const ExpertsCase& it : experts_cases())
    for (const auto& [out, in] : kWidths) {
      SCOPED_TRACE(testing::Message() << it << ", out " << out << ", in " << in);
      const Selection selection = it.select(5);
      const at::Tensor x = random_rows(selection, in, 6, type()), dy = random_rows(selection, out, 7, type());
      const Values xs = values_of(x), dys = values_of(dy);
      ProductBound expected = bound_of(it.local.count * out * in);
      std::int64_t row = 0;
      for (const ReferenceRow& source : rows_of(selection)) {
        for (std::int64_t o = 0; o < out; ++o)
          for (std::int64_t i = 0; i < in; ++i)
            expected.add(static_cast<std::size_t>((source.expert * out + o) * in + i),
                         dys[static_cast<std::size_t>(row * out + o)] * xs[static_cast<std::size_t>(row * in + i)]);
        ++row;
      }
      const at::Tensor before = random_tensor({it.local.count * out, in}, 8, accumulator(type()));
      at::Tensor dw = before.clone().fill_(std::nan(""));
      grouped_wgrad(dy, x, selection, dw, false);
      expected.expect(dw, GetParam().type);
      for (const at::ScalarType wire : {GetParam().type, at::kBFloat16}) {
        at::Tensor rounded = before.to(wire).fill_(std::nan(""));
        grouped_wgrad(dy, x, selection, rounded, false);
        EXPECT_TRUE(same_bits(rounded, dw.to(wire))) << "the result is not rounded once";
      }
      at::Tensor sum = before.clone();
      grouped_wgrad(dy, x, selection, sum, true);
      EXPECT_TRUE(same_bits(sum, before.clone().add_(dw))) << "the product is not computed alone and then added";
    }
}

// An expert has rows in two blocks of very different lengths. The libraries choose different kernels for different
// shapes.
struct TwoBlocks {
  at::Tensor choices;
  std::int64_t length;
};
TwoBlocks two_blocks(std::int64_t first, std::int64_t second) {
  const std::int64_t length = std::max(first, second);
  std::vector<std::int32_t> experts(static_cast<std::size_t>(2 * length), 1);  // expert 1 is not local
  for (std::int64_t token = 0; token < first; ++token) experts[static_cast<std::size_t>(token)] = 0;
  for (std::int64_t token = 0; token < second; ++token) experts[static_cast<std::size_t>(length + token)] = 0;
  return {choices_tensor(experts, 1), length};
}

TEST_P(Grouped, FpropAndDgradAreOneProductForEachExpertAndBlock) {
  for (const auto& [first, second] : {std::pair{1L, 37L}, {37L, 1L}, {3L, 4L}, {0L, 5L}, {40L, 129L}})
    for (const auto& [out, in] : {Widths{65, 130}, {37, 2056}, {2056, 37}}) {
      SCOPED_TRACE(testing::Message() << first << " and " << second << " rows, out " << out << ", in " << in);
      const LocalExperts local{.first = 0, .count = 1, .all = 2};
      const TwoBlocks both = two_blocks(first, second);
      const Selection selection = select_rows(both.choices, local, 2);
      const at::Tensor x = random_rows(selection, in, 9, type()), dy = random_rows(selection, out, 10, type());
      const at::Tensor w = random_tensor({out, in}, 11, type());
      const at::Tensor y = grouped_fprop(x, w, selection), dx = grouped_dgrad(dy, w, selection);
      for (const std::int64_t block : {0, 1}) {
        const auto [begin, end] = selection.rows_of(0, block);
        ASSERT_EQ(end - begin, block == 0 ? first : second);
        const Selection alone = select_rows(both.choices.narrow(0, block * both.length, both.length), local, 1);
        at::Tensor own_x = random_rows(alone, in, 12, type()), own_dy = random_rows(alone, out, 13, type());
        used(own_x, alone).copy_(x.narrow(0, begin, end - begin));
        used(own_dy, alone).copy_(dy.narrow(0, begin, end - begin));
        EXPECT_TRUE(same_bits(used(grouped_fprop(own_x, w, alone), alone), y.narrow(0, begin, end - begin)));
        EXPECT_TRUE(same_bits(used(grouped_dgrad(own_dy, w, alone), alone), dx.narrow(0, begin, end - begin)));
      }
    }
}

// Returns rows, inner and cols of each product that ATen computes in `body`, in order.
using ProductShapes = std::vector<std::array<std::int64_t, 3>>;
ProductShapes products_of(const std::function<void()>& body) {
  static ProductShapes* shapes = nullptr;  // a callback of ATen has no state
  ProductShapes all;
  shapes = &all;
  const auto record = [](const at::RecordFunction& call) -> std::unique_ptr<at::ObserverContext> {
    if (std::string_view(call.name()) == "aten::mm") {
      const at::Tensor& left = call.inputs()[0].toTensor();
      shapes->push_back({left.size(0), left.size(1), call.inputs()[1].toTensor().size(1)});
    }
    return nullptr;
  };
  const at::CallbackHandle handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(record).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  body();
  at::removeCallback(handle);
  shapes = nullptr;
  return all;
}

// A library may compute a row with the same bits in products of different lengths, so the products are observed too.
TEST_P(Grouped, ComputesOneProductForEachExpertAndBlockAndOneWgradForEachExpert) {
  // The rows in the three blocks: expert 0 has 2, 0 and 1 rows, expert 1 has no rows, and expert 2 has 0, 3 and 0 rows.
  const Selection selection =
      select_rows(choices_tensor({0, 0, 3, /**/ 2, 2, 2, /**/ 0, 3, 3}, 1), {.first = 0, .count = 3, .all = 4}, 3);
  const at::Tensor x = random_rows(selection, 5, 25, type()), dy = random_rows(selection, 7, 26, type());
  const at::Tensor w = random_tensor({21, 5}, 27, type());
  at::Tensor dw = random_tensor({21, 5}, 28, accumulator(type()));
  EXPECT_EQ(products_of([&] { grouped_fprop(x, w, selection); }), (ProductShapes{{2, 5, 7}, {1, 5, 7}, {3, 5, 7}}));
  EXPECT_EQ(products_of([&] { grouped_dgrad(dy, w, selection); }), (ProductShapes{{2, 7, 5}, {1, 7, 5}, {3, 7, 5}}));
  for (const bool accumulate : {false, true})
    EXPECT_EQ(products_of([&] { grouped_wgrad(dy, x, selection, dw, accumulate); }),
              (ProductShapes{{7, 3, 5}, {7, 3, 5}}));
}

TEST_P(Grouped, WgradIsOneProductOverAllBlocks) {
  const TwoBlocks both = two_blocks(37, 70);
  const Selection selection = select_rows(both.choices, {.first = 0, .count = 1, .all = 2}, 2);
  const at::Tensor x = random_rows(selection, 33, 14, type()), dy = random_rows(selection, 17, 15, type());
  at::Tensor dw = random_tensor({17, 33}, 16, accumulator(type())), expected = dw.clone();
  gemm_wgrad(used(dy, selection), used(x, selection), expected, false);
  grouped_wgrad(dy, x, selection, dw, false);
  EXPECT_TRUE(same_bits(dw, expected));
}

TEST_P(Grouped, GradientsOfExpertsWithoutRowsAreZeroOrKept) {
  const Selection selection = select_rows(choices_tensor({2, 2, 0}, 1), {.first = 0, .count = 4, .all = 4}, 1);
  const at::Tensor x = random_rows(selection, 5, 17, type()), dy = random_rows(selection, 3, 18, type());
  const at::Tensor before = random_tensor({12, 5}, 19, accumulator(type()));
  at::Tensor dw = before.clone(), sum = before.clone();
  grouped_wgrad(dy, x, selection, dw, false);
  grouped_wgrad(dy, x, selection, sum, true);
  for (const std::int64_t expert : {1, 3}) {
    EXPECT_TRUE(same_bits(dw.narrow(0, expert * 3, 3), before.narrow(0, expert * 3, 3).clone().zero_()));
    EXPECT_TRUE(same_bits(sum.narrow(0, expert * 3, 3), before.narrow(0, expert * 3, 3)));
  }
}

TEST_P(Grouped, KeepsNaNInItsRowAndItsExpert) {
  const ExpertsCase it = experts_cases()[5];
  const Selection selection = it.select(20);
  const at::Tensor x = random_rows(selection, 5, 21, type()), dy = random_rows(selection, 3, 22, type());
  const at::Tensor w = random_tensor({it.local.count * 3, 5}, 23, type());
  const std::int64_t row = selection.rows_of(1).first;
  at::Tensor spoiled = x.clone();
  spoiled[row].fill_(std::nan(""));
  const at::Tensor y = grouped_fprop(x, w, selection), other = grouped_fprop(spoiled, w, selection);
  for (std::int64_t r = 0; r < selection.rows(); ++r) EXPECT_EQ(same_bits(y[r], other[r]), r != row) << "row " << r;
  at::Tensor dw = random_tensor(w.sizes(), 24, accumulator(type())), spoiled_dw = dw.clone();
  grouped_wgrad(dy, x, selection, dw, false);
  grouped_wgrad(dy, spoiled, selection, spoiled_dw, false);
  for (std::int64_t expert = 0; expert < it.local.count; ++expert)
    EXPECT_EQ(same_bits(dw.narrow(0, expert * 3, 3), spoiled_dw.narrow(0, expert * 3, 3)), expert != 1);
}

// The same checks hold in a dry run, and for experts without rows.
TEST_P(Grouped, RejectsMismatchedOperands) {
  const ExpertsCase it{.length = 4, .blocks = 1, .k = 2, .local = {.first = 0, .count = 3, .all = 6}};
  const Selection dry = select_rows(dry_tensor({4, 2}, at::kInt), it.local, 1);
  const Selection empty = select_rows(choices_tensor({3, 4, 4, 5, 3, 5, 5, 4}, 2), it.local, 1);
  for (const bool is_dry : {false, true}) {
    SCOPED_TRACE(is_dry ? "dry" : "without rows");
    const Selection& selection = is_dry ? dry : empty;
    const auto tensor = [&](at::IntArrayRef shape, const at::TensorOptions& options) {
      return is_dry ? dry_tensor(shape, options) : random_tensor(shape, 1, options);
    };
    const at::Tensor x = tensor({8, 5}, type()), dy = tensor({8, 2}, type()), w = tensor({6, 5}, type());
    const at::ScalarType other = GetParam().type == at::kDouble ? at::kFloat : at::kDouble;
    EXPECT_NO_THROW(grouped_fprop(x, w, selection));
    EXPECT_THROW(grouped_fprop(tensor({7, 5}, type()), w, selection), Error);
    EXPECT_THROW(grouped_fprop(tensor({8, 4}, type()), w, selection), Error);
    EXPECT_THROW(grouped_fprop(x, tensor({7, 5}, type()), selection), Error);
    EXPECT_THROW(grouped_fprop(x, tensor({6, 5}, other), selection), Error);
    EXPECT_NO_THROW(grouped_dgrad(dy, w, selection));
    EXPECT_THROW(grouped_dgrad(tensor({8, 3}, type()), w, selection), Error);
    EXPECT_THROW(grouped_dgrad(dy, tensor({6, 5}, other), selection), Error);
    at::Tensor dw = tensor({6, 5}, accumulator(type())), tall = tensor({9, 5}, accumulator(type())),
               wide = tensor({6, 6}, accumulator(type()));
    EXPECT_NO_THROW(grouped_wgrad(dy, x, selection, dw, true));
    EXPECT_THROW(grouped_wgrad(dy, x, selection, tall, true), Error);
    EXPECT_THROW(grouped_wgrad(dy, x, selection, wide, true), Error);
    EXPECT_THROW(grouped_wgrad(dy, tensor({7, 5}, type()), selection, dw, true), Error);
    EXPECT_THROW(grouped_wgrad(dy, tensor({8, 5}, other), selection, dw, true), Error);
    at::Tensor narrow = tensor({6, 5}, at::kBFloat16);
    EXPECT_NO_THROW(grouped_wgrad(dy, x, selection, narrow, false));
    EXPECT_THROW(grouped_wgrad(dy, x, selection, narrow, true), Error);
  }
}

TEST_P(Grouped, ReportsTheProductsOfTheExpectedRowsInADryRun) {
  for (const ExpertsCase& it : experts_cases()) {
    SCOPED_TRACE(it);
    const Selection dry = select_rows(dry_tensor({it.tokens(), it.k}, at::kInt), it.local, it.blocks);
    const std::int64_t out = it.local.count == 0 ? 0 : 3;
    const at::Tensor x = dry_tensor({dry.room, 5}, type()), dy = dry_tensor({dry.room, out}, type());
    const at::Tensor w = dry_tensor({it.local.count * 3, 5}, type());
    at::Tensor dw = dry_tensor({it.local.count * 3, 5}, accumulator(type()));
    const std::vector<Work> work = work_of([&] {
      EXPECT_EQ(grouped_fprop(x, w, dry).sizes(), (at::IntArrayRef{dry.room, out}));
      EXPECT_EQ(grouped_dgrad(dy, w, dry).sizes(), (at::IntArrayRef{dry.room, 5}));
      grouped_wgrad(dy, x, dry, dw, true);
    });
    ASSERT_EQ(work.size(), 3u);
    constexpr ProductCall kCalls[] = {ProductCall::fprop, ProductCall::dgrad, ProductCall::wgrad};
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(work[i].kind, WorkKind::product) << i;
      EXPECT_EQ(work[i].product.call, kCalls[i]);
      EXPECT_EQ(work[i].flops, static_cast<double>(2 * dry.expected * out * 5)) << i;
    }
    EXPECT_TRUE(work[2].product.accumulate);
  }
}

}  // namespace
}  // namespace tessera::ops::test
