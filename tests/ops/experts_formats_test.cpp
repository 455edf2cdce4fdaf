// Tests products of experts in number formats on a CPU and on a GPU: alpha times the fp64 sum of decoded values within
// a derived bound, operands with the bytes of the definition, and results that do not depend on other experts.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/ops/gemm/operand.h"
#include "tessera/ops/grouped/grouped_formats.h"
#include "tessera/quant/formats/decoded.h"
#include "tests/ops/decoded_matrices.h"
#include "tests/ops/experts_values.h"

namespace tessera::ops::test::formats {
namespace {

using quant::Encoding, quant::Format;

struct Widths {
  std::int64_t out, in;
};

// Returns random values whose rows and columns have different magnitudes. Rows after the selected rows are large.
at::Tensor graded_rows(const Selection& selection, std::int64_t width, std::uint64_t seed) {
  at::Tensor values = random_tensor({selection.room, width}, seed, at::TensorOptions(at::kFloat));
  for (std::int64_t row = 0; row < selection.room; ++row)
    values[row].mul_(row < selection.rows() ? std::ldexp(1.0, static_cast<int>(row * 5 % 7) - 3) : 1e30);
  for (std::int64_t col = 0; col < width; ++col)
    values.select(1, col).mul_(std::ldexp(1.0, static_cast<int>(col / 16 % 4)));
  return values.to(at::kBFloat16);
}
at::Tensor graded_stack(std::int64_t matrices, const Widths& widths, std::uint64_t seed) {
  at::Tensor values = random_tensor({matrices * widths.out, widths.in}, seed, at::TensorOptions(at::kFloat));
  for (std::int64_t i = 0; i < matrices; ++i)
    values.narrow(0, i * widths.out, widths.out).mul_(std::ldexp(1.0, static_cast<int>(i % 5) - 2));
  return values.to(at::kBFloat16);
}

struct Products {
  at::Tensor y, dx, dw;
};

class ExpertsInFormats : public testing::TestWithParam<at::DeviceType> {
 protected:
  void SetUp() override {
    if (GetParam() == at::kCUDA && !has_cuda()) GTEST_SKIP() << "no CUDA device";
  }
  bool on_gpu() const { return GetParam() == at::kCUDA; }
  at::Tensor here(const at::Tensor& host) const { return host.to(at::Device(GetParam())); }

  Selection select(const at::Tensor& choices, const LocalExperts& local, std::int64_t blocks) const {
    return select_rows(here(choices), local, blocks);
  }
  RowQuantization quantization(const at::Tensor& rows, const Encoding& encoding, const Selection& selection,
                               RowMatrices matrices) const {
    return {.encoding = encoding, .whole = grouped_scales(encoding, amaxes_of_rows(rows, selection, matrices))};
  }
  static StackFactor stack(const at::Tensor& w, std::int64_t local, const Encoding& encoding) {
    return decode_stack(w, local, encoding, grouped_scales(encoding, amaxes_of_stack(w, local)));
  }

  // Computes all products with the scales of the matrices. Tensors and results are on this device.
  Products products(const Kinds& kind, const at::Tensor& x, const at::Tensor& dy, const at::Tensor& w,
                    const Selection& selection) const {
    Products result;
    using enum RowMatrices;
    result.y = grouped_fprop(x, quantization(x, kind.input(), selection, blocks),
                             stack(w, selection.local, weight_encoding(kind.format)), selection);
    result.dx = grouped_dgrad(dy, quantization(dy, kind.gradient(), selection, blocks),
                              stack(w, selection.local, columnwise_encoding(kind.format)), selection);
    result.dw = at::full(w.sizes(), std::nan(""), x.options());
    grouped_wgrad({.rows = dy, .as = quantization(dy, kind.gradient(), selection, experts)},
                  {.rows = x, .as = quantization(x, kind.input(), selection, experts)}, selection, result.dw, false);
    return result;
  }

  void check(const Kinds& kind, const ExpertsCase& it, const Widths& widths, std::uint64_t seed) const {
    SCOPED_TRACE(testing::Message() << kind << ", " << it << ", out " << widths.out << ", in " << widths.in);
    const at::Tensor choices = random_choices(it.tokens(), it.k, it.local.all, seed);
    const Selection host = select_rows(choices, it.local, it.blocks), selection = select(choices, it.local, it.blocks);
    const at::Tensor x = graded_rows(host, widths.in, seed + 1), dy = graded_rows(host, widths.out, seed + 2);
    const at::Tensor w = graded_stack(it.local.count, widths, seed + 3);
    const Products got = products(kind, here(x), here(dy), here(w), selection);
    for (std::int64_t expert = 0; expert < it.local.count; ++expert) {
      const at::Tensor own = w.narrow(0, expert * widths.out, widths.out);
      const Decoded rows_of_w = definition(own, weight_encoding(kind.format));
      Decoded columns_of_w = definition(own, columnwise_encoding(kind.format));
      columns_of_w.values = columns_of_w.values.t();
      for (std::int64_t block = 0; block < it.blocks; ++block) {
        const auto [begin, end] = host.rows_of(expert, block);
        if (begin == end) continue;
        expect_product(got.y.narrow(0, begin, end - begin), definition(x.narrow(0, begin, end - begin), kind.input()),
                       rows_of_w);
        expect_product(got.dx.narrow(0, begin, end - begin),
                       definition(dy.narrow(0, begin, end - begin), kind.gradient()), columns_of_w);
      }
      const auto [begin, end] = host.rows_of(expert);
      Decoded of_dy = definition(dy.narrow(0, begin, end - begin), quant::by_columns(kind.gradient())),
              of_x = definition(x.narrow(0, begin, end - begin), quant::by_columns(kind.input()));
      of_dy.values = of_dy.values.t(), of_x.values = of_x.values.t();
      expect_product(got.dw.narrow(0, expert * widths.out, widths.out), of_dy, of_x);
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, ExpertsInFormats, testing::Values(at::kCPU, at::kCUDA),
                         [](const auto& device) { return device.param == at::kCPU ? "Cpu" : "Cuda"; });

TEST_P(ExpertsInFormats, ProductsAreAlphaTimesTheSumsOfDecodedValues) {
  for (const Kinds& kind : kKinds) {
    for (const ExpertsCase& it : experts_cases())
      for (const Widths& widths : {Widths{3, 5}, {17, 33}, {1, 1}, {64, 16}}) check(kind, it, widths, 1);
    // Sums of 1 to 4096 terms. The first expert of the second case has about 150 rows in each block.
    for (const std::int64_t terms : {1, 15, 16, 17, 288, 4096})
      check(kind, {.length = 5, .blocks = 2, .k = 1, .local = {0, 2, 3}}, {terms, terms == 4096 ? 20 : terms}, 11);
    check(kind, {.length = 300, .blocks = 2, .k = 1, .local = {1, 2, 3}}, {20, 4096}, 21);
  }
}

// Rows of one expert are multiplied alone and with other experts, whose rows and matrices are larger.
TEST_P(ExpertsInFormats, ProductsDoNotDependOnOtherExperts) {
  constexpr std::int64_t kOut = 40, kIn = 72;
  const LocalExperts one{.first = 0, .count = 1, .all = 4}, three{.first = 0, .count = 3, .all = 4};
  for (const Kinds& kind : kKinds)
    for (const std::int64_t own : {1, 15, 40, 130})
      for (const std::int64_t others : {0, 3, 700}) {
        SCOPED_TRACE(testing::Message() << kind << ", " << own << " rows, " << others << " other rows");
        const std::vector<std::int32_t> mine(static_cast<std::size_t>(own), 0);
        const Selection alone = select(choices_tensor(mine, 1), one, 1);
        const at::Tensor x = here(random_tensor({own, kIn}, 1, at::kBFloat16)),
                         dy = here(random_tensor({own, kOut}, 2, at::kBFloat16)),
                         w = here(random_tensor({kOut, kIn}, 3, at::kBFloat16));
        const Products expected = products(kind, x, dy, w, alone);
        // The experts choose the last place in the order of rows, and then the first.
        for (const std::int64_t place : {0, 2}) {
          std::vector<std::int32_t> all(static_cast<std::size_t>(own), static_cast<std::int32_t>(place));
          all.resize(static_cast<std::size_t>(own + others), 1);
          const Selection selection = select(choices_tensor(all, 1), three, 1);
          const std::int64_t first = place == 0 ? 0 : others;
          const at::Tensor rows = here(random_tensor({own + others, kIn}, 4, at::kBFloat16, 1e4)),
                           gradients = here(random_tensor({own + others, kOut}, 5, at::kBFloat16, 1e4)),
                           weights = here(random_tensor({3 * kOut, kIn}, 6, at::kBFloat16, 1e4));
          rows.narrow(0, first, own).copy_(x);
          gradients.narrow(0, first, own).copy_(dy);
          weights.narrow(0, place * kOut, kOut).copy_(w);
          const Products got = products(kind, rows, gradients, weights, selection);
          EXPECT_TRUE(same_bits(got.y.narrow(0, first, own), expected.y));
          EXPECT_TRUE(same_bits(got.dx.narrow(0, first, own), expected.dx));
          EXPECT_TRUE(same_bits(got.dw.narrow(0, place * kOut, kOut), expected.dw));
        }
      }
}

TEST_P(ExpertsInFormats, RowsOfABlockDoNotDependOnOtherBlocks) {
  const LocalExperts local{.first = 0, .count = 2, .all = 3};
  const at::Tensor choices = random_choices(24, 1, 3, 9);
  for (const Kinds& kind : kKinds) {
    SCOPED_TRACE(kind);
    const Selection host = select_rows(choices, local, 2), both = select(choices, local, 2);
    const at::Tensor x = graded_rows(host, 33, 1), dy = graded_rows(host, 18, 2), w = graded_stack(2, {18, 33}, 3);
    const Products all = products(kind, here(x), here(dy), here(w), both);
    for (const std::int64_t block : {0, 1}) {
      const at::Tensor some = choices.narrow(0, block * 12, 12).contiguous();
      const Selection alone = select_rows(some, local, 1);
      at::Tensor own_x = graded_rows(alone, 33, 4), own_dy = graded_rows(alone, 18, 5);
      for (const std::int64_t expert : {0, 1}) {
        const auto [begin, end] = host.rows_of(expert, block);
        const auto [own, own_end] = alone.rows_of(expert, 0);
        ASSERT_EQ(own_end - own, end - begin);
        own_x.narrow(0, own, end - begin).copy_(x.narrow(0, begin, end - begin));
        own_dy.narrow(0, own, end - begin).copy_(dy.narrow(0, begin, end - begin));
      }
      const Products got = products(kind, here(own_x), here(own_dy), here(w), select(some, local, 1));
      for (const std::int64_t expert : {0, 1}) {
        const auto [begin, end] = host.rows_of(expert, block);
        const std::int64_t own = alone.rows_of(expert, 0).first;
        EXPECT_TRUE(same_bits(got.y.narrow(0, own, end - begin), all.y.narrow(0, begin, end - begin)));
        EXPECT_TRUE(same_bits(got.dx.narrow(0, own, end - begin), all.dx.narrow(0, begin, end - begin)));
      }
    }
  }
}

std::vector<Encoding> all_encodings(const Kinds& kind) {
  return {kind.input(),
          kind.gradient(),
          quant::by_columns(kind.input()),
          quant::by_columns(kind.gradient()),
          weight_encoding(kind.format),
          columnwise_encoding(kind.format)};
}

TEST_P(ExpertsInFormats, StacksHaveTheBytesOfTheDefinition) {
  constexpr std::int64_t kMatrices = 3;
  for (const Kinds& kind : kKinds)
    for (const Encoding& encoding : all_encodings(kind))
      for (const Widths& widths :
           {Widths{1, 2}, {2, 1}, {16, 16}, {17, 33}, {31, 15}, {33, 300}, {300, 97}, {130, 260}, {300, 1040}})
        for (const bool is_special : {false, true}) {
          SCOPED_TRACE(testing::Message() << kind << ", tiles " << encoding.tile.rows << " x " << encoding.tile.cols
                                          << ", " << widths.out << " x " << widths.in << ", " << is_special);
          at::Tensor w = graded_stack(kMatrices, widths, 1);
          if (is_special) spoil(w);
          const StackFactor got = stack(here(w), kMatrices, encoding);
          const at::Tensor values = got.values.cpu();
          for (std::int64_t i = 0; i < kMatrices; ++i) {
            const at::Tensor own = w.narrow(0, i * widths.out, widths.out);
            const Decoded expected = definition(own, encoding);
            EXPECT_TRUE(same_bits(values.narrow(0, i * widths.out, widths.out), expected.bytes));
            if (!got.whole.defined()) continue;
            const float number = got.whole.cpu()[i].item<float>();
            EXPECT_TRUE(number == expected.number || (std::isnan(number) && std::isnan(expected.number)));
          }
        }
}

TEST_P(ExpertsInFormats, AmaxesAreOfTheSelectedRows) {
  for (const ExpertsCase& it : experts_cases()) {
    SCOPED_TRACE(it);
    const at::Tensor choices = random_choices(it.tokens(), it.k, it.local.all, 3);
    const Selection host = select_rows(choices, it.local, it.blocks), selection = select(choices, it.local, it.blocks);
    for (const std::int64_t width : {1, 6, 35, 1200}) {
      const at::Tensor rows = graded_rows(host, width, 4);
      const auto amax = [&](std::int64_t begin, std::int64_t end) {
        return begin == end ? 0.0F : rows.narrow(0, begin, end - begin).abs().max().item<float>();
      };
      const at::Tensor of_blocks = amaxes_of_rows(here(rows), selection, RowMatrices::blocks).cpu();
      const at::Tensor of_experts = amaxes_of_rows(here(rows), selection, RowMatrices::experts).cpu();
      ASSERT_EQ(of_blocks.numel(), it.local.count * it.blocks);
      ASSERT_EQ(of_experts.numel(), it.local.count);
      for (std::int64_t expert = 0; expert < it.local.count; ++expert) {
        const auto [begin, end] = host.rows_of(expert);
        EXPECT_EQ(of_experts[expert].item<float>(), amax(begin, end));
        for (std::int64_t block = 0; block < it.blocks; ++block) {
          const auto [first, last] = host.rows_of(expert, block);
          EXPECT_EQ(of_blocks[expert * it.blocks + block].item<float>(), amax(first, last));
        }
      }
    }
  }
}

// With delayed scaling all matrices have one scale, and the product reports the greatest magnitude.
TEST_P(ExpertsInFormats, OneScaleForAllMatricesIsApplied) {
  const ExpertsCase it{.length = 9, .blocks = 2, .k = 2, .local = {0, 3, 4}};
  const at::Tensor choices = random_choices(it.tokens(), it.k, it.local.all, 5);
  const Selection host = select_rows(choices, it.local, it.blocks), selection = select(choices, it.local, it.blocks);
  const at::Tensor x = graded_rows(host, 20, 6), dy = graded_rows(host, 12, 7), w = graded_stack(3, {12, 20}, 8);
  const Kinds kind{Format::fp8};
  constexpr float kMultiplier = 3;
  const at::Tensor amaxes = here(at::zeros({2}, at::kFloat));
  const auto scaled = [&](const Encoding& encoding, int place) {
    return RowQuantization{.encoding = encoding,
                           .whole = {.multiplier = here(at::full({1}, kMultiplier, at::kFloat)),
                                     .inverse = here(at::full({1}, 1 / kMultiplier, at::kFloat)),
                                     .amax = {}},
                           .amax = amaxes.mutable_data_ptr<float>() + place};
  };
  const at::Tensor y = grouped_fprop(here(x), scaled(kind.input(), 0), stack(here(w), 3, weight_encoding(kind.format)),
                                     selection),
                   dx = grouped_dgrad(here(dy), scaled(kind.gradient(), 1),
                                      stack(here(w), 3, columnwise_encoding(kind.format)), selection);
  for (std::int64_t expert = 0; expert < 3; ++expert) {
    const auto [begin, end] = host.rows_of(expert);
    const at::Tensor own = w.narrow(0, expert * 12, 12);
    expect_product(y.narrow(0, begin, end - begin),
                   definition(x.narrow(0, begin, end - begin), kind.input(), kMultiplier),
                   definition(own, weight_encoding(kind.format)));
    Decoded columns = definition(own, columnwise_encoding(kind.format));
    columns.values = columns.values.t();
    expect_product(dx.narrow(0, begin, end - begin),
                   definition(dy.narrow(0, begin, end - begin), kind.gradient(), kMultiplier), columns);
  }
  EXPECT_EQ(amaxes.cpu()[0].item<float>(), used(x, host).abs().max().item<float>());
  EXPECT_EQ(amaxes.cpu()[1].item<float>(), used(dy, host).abs().max().item<float>());
}

TEST_P(ExpertsInFormats, ValuesThatAreNotFiniteReachTheProductsOfTheirExpertAlone) {
  const ExpertsCase it{.length = 20, .blocks = 1, .k = 2, .local = {0, 3, 4}};
  const at::Tensor choices = random_choices(it.tokens(), it.k, it.local.all, 5);
  const Selection host = select_rows(choices, it.local, 1), selection = select(choices, it.local, 1);
  for (const Kinds& kind : kKinds)
    for (const float value : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()})
      for (const bool in_gradient : {false, true}) {
        SCOPED_TRACE(testing::Message() << kind << ", " << value << ", " << in_gradient);
        at::Tensor x = graded_rows(host, 40, 6), dy = graded_rows(host, 24, 7), w = graded_stack(3, {24, 40}, 8);
        const std::int64_t row = host.rows_of(1).first + 1;
        (in_gradient ? dy : x)[row][5].fill_(value);
        const Products got = products(kind, here(x), here(dy), here(w), selection);
        const at::Tensor& from_row = in_gradient ? got.dx : got.y;
        EXPECT_FALSE(from_row[row].isfinite().any().item<bool>());
        EXPECT_TRUE((in_gradient ? got.y : got.dx).narrow(0, 0, host.rows()).isfinite().all().item<bool>());
        for (const std::int64_t expert : {0, 1, 2}) {
          const auto [begin, end] = host.rows_of(expert);
          EXPECT_EQ(from_row.narrow(0, begin, end - begin).isfinite().all().item<bool>(), expert != 1);
          EXPECT_EQ(got.dw.narrow(0, expert * 24, 24).isfinite().all().item<bool>(), expert != 1);
        }
      }
}

TEST_P(ExpertsInFormats, GradientsOfExpertsWithoutRowsAreZeroOrKept) {
  const LocalExperts local{.first = 0, .count = 4, .all = 4};
  const Selection selection = select(choices_tensor({2, 2, 0}, 1), local, 1);
  for (const Kinds& kind : kKinds) {
    const at::Tensor x = here(random_tensor({3, 5}, 1, at::kBFloat16)),
                     dy = here(random_tensor({3, 3}, 2, at::kBFloat16));
    const RowQuantization x_as = quantization(x, kind.input(), selection, RowMatrices::experts),
                          dy_as = quantization(dy, kind.gradient(), selection, RowMatrices::experts);
    const at::Tensor before = here(random_tensor({12, 5}, 3, at::kBFloat16));
    at::Tensor dw = before.clone();
    grouped_wgrad({.rows = dy, .as = dy_as}, {.rows = x, .as = x_as}, selection, dw, false);
    for (const std::int64_t expert : {1, 3})
      EXPECT_EQ(dw.narrow(0, expert * 3, 3).count_nonzero().item<std::int64_t>(), 0);
    EXPECT_GT(dw.narrow(0, 0, 3).count_nonzero().item<std::int64_t>(), 0);
    if (on_gpu()) continue;  // a GPU accumulates in bf16 only through another tensor
    at::Tensor sum = before.to(at::kFloat), alone = sum.clone();
    grouped_wgrad({.rows = dy, .as = dy_as}, {.rows = x, .as = x_as}, selection, sum, true);
    grouped_wgrad({.rows = dy, .as = dy_as}, {.rows = x, .as = x_as}, selection, alone, false);
    EXPECT_TRUE(same_bits(sum, before.to(at::kFloat).add_(alone)));
    EXPECT_TRUE(same_bits(dw, alone.to(at::kBFloat16)));
  }
}

// ---- dry runs and errors

TEST(ExpertsInFormatsOfADryRun, ReportBf16ProductsAndTheBytesOfQuantization) {
  const LocalExperts local{.first = 0, .count = 3, .all = 6};
  for (const Format format : {Format::fp8, Format::mxfp8, Format::nvfp4}) {
    const Selection dry = select_rows(dry_tensor({8, 2}, at::kInt), local, 2);
    const at::Tensor x = dry_tensor({dry.room, 6}, at::kBFloat16), dy = dry_tensor({dry.room, 4}, at::kBFloat16),
                     w = dry_tensor({12, 6}, at::kBFloat16);
    at::Tensor dw = dry_tensor({12, 6}, at::kBFloat16);
    const Encoding encoding = input_encoding(format);
    const std::vector<Work> works = work_of([&] {
      const auto as = [&](const at::Tensor& rows, RowMatrices matrices) {
        RowQuantization result{.encoding = encoding};
        if (needs_whole(encoding)) result.whole = grouped_scales(encoding, amaxes_of_rows(rows, dry, matrices));
        return result;
      };
      const auto stack = [&](const Encoding& of_weight) {
        WholeScale whole;
        if (needs_whole(of_weight)) whole = grouped_scales(of_weight, amaxes_of_stack(w, 3));
        return decode_stack(w, 3, of_weight, whole);
      };
      EXPECT_EQ(grouped_fprop(x, as(x, RowMatrices::blocks), stack(weight_encoding(format)), dry).sizes(),
                (at::IntArrayRef{dry.room, 4}));
      EXPECT_EQ(grouped_dgrad(dy, as(dy, RowMatrices::blocks), stack(columnwise_encoding(format)), dry).sizes(),
                (at::IntArrayRef{dry.room, 6}));
      grouped_wgrad({.rows = dy, .as = as(dy, RowMatrices::experts)}, {.rows = x, .as = as(x, RowMatrices::experts)},
                    dry, dw, false);
    });
    double amax = 0, quantize = 0;
    std::vector<ProductCall> calls;
    for (const Work& work : works) {
      if (work.kind == WorkKind::product) {
        calls.push_back(work.product.call);
        EXPECT_EQ(work.flops, static_cast<double>(2 * dry.expected * 4 * 6));
        EXPECT_EQ(work.product.format, Format::bf16);
      } else {
        (std::string_view(work.name) == "amax" ? amax : quantize) += work.bytes;
      }
    }
    EXPECT_THAT(calls, testing::ElementsAre(ProductCall::fprop, ProductCall::dgrad, ProductCall::wgrad));
    const double rows = static_cast<double>(dry.expected) * 2 * (6 + 4), weights = 2.0 * 12 * 6;
    EXPECT_EQ(quantize, 4 * rows + 4 * weights);
    EXPECT_EQ(amax, format == Format::mxfp8 ? 0 : 2 * rows + 2 * weights);
  }
}

TEST(ExpertsInFormatsErrors, NameWhatDoesNotMatch) {
  const LocalExperts local{.first = 0, .count = 2, .all = 2};
  const Selection selection = select_rows(choices_tensor({0, 1, 1}, 1), local, 1);
  const at::Tensor x = random_tensor({3, 6}, 1, at::kBFloat16), w = random_tensor({8, 6}, 2, at::kBFloat16);
  const Encoding encoding = input_encoding(Format::nvfp4), of_weight = weight_encoding(Format::nvfp4);
  const WholeScale whole = grouped_scales(encoding, amaxes_of_rows(x, selection, RowMatrices::blocks));
  const RowQuantization as{.encoding = encoding, .whole = whole};
  const StackFactor stack = decode_stack(w, 2, of_weight, grouped_scales(of_weight, amaxes_of_stack(w, 2)));
  EXPECT_NO_THROW(grouped_fprop(x, as, stack, selection));
  EXPECT_THROW(grouped_fprop(x, {.encoding = encoding}, stack, selection), Error);
  EXPECT_THROW(grouped_fprop(x.to(at::kFloat), as, stack, selection), Error);
  EXPECT_THROW(grouped_fprop(x.narrow(0, 0, 2), as, stack, selection), Error);
  EXPECT_THROW(grouped_fprop(x.narrow(1, 0, 4), as, stack, selection), Error);
  EXPECT_THROW(grouped_dgrad(x, as, stack, selection), Error);
  EXPECT_THROW(decode_stack(w, 2, of_weight, {.amax = at::zeros({3})}), Error);
  at::Tensor tall = at::zeros({9, 6}), wide = at::zeros({8, 7});
  EXPECT_THROW(grouped_wgrad({.rows = x, .as = as}, {.rows = x, .as = as}, selection, tall, true), Error);
  EXPECT_THROW(grouped_wgrad({.rows = x, .as = as}, {.rows = x, .as = as}, selection, wide, true), Error);
}

}  // namespace
}  // namespace tessera::ops::test::formats
