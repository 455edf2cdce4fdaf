// Tests the recipe of nvfp4 in products of experts on a CPU and on a GPU: the transform begins at the first row of each
// expert, and the random bits of a gradient are those of its logical expert and token.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/text/name_hash.h"
#include "tessera/ops/grouped/grouped_formats.h"
#include "tessera/quant/formats/hadamard.h"
#include "tests/ops/decoded_matrices.h"
#include "tests/ops/experts_values.h"

namespace tessera::ops::test::formats {
namespace {

using quant::Format;

constexpr std::int64_t kFirstToken = 1234, kTrainStep = 7;
const quant::Encoding kGradients = gradient_encoding(Format::nvfp4, quant::Fp8Recipe::hybrid);
// Experts 2 to 7 of 9 are local. Each has this number of rows.
constexpr LocalExperts kLocal{.first = 2, .count = 6, .all = 9};
constexpr std::int64_t kRowsOfExperts[] = {17, 0, 33, 1, 16, 15};

// Two blocks of 41 tokens. The rows of an expert are in both blocks.
at::Tensor uneven_choices() {
  std::vector<std::int32_t> experts;
  for (std::int64_t expert = 0; expert < kLocal.count; ++expert)
    experts.insert(experts.end(), static_cast<std::size_t>(kRowsOfExperts[expert]),
                   static_cast<std::int32_t>(kLocal.first + expert));
  std::vector<std::int32_t> mixed;
  for (std::size_t i = 0; i < experts.size(); ++i) mixed.push_back(experts[i * 31 % experts.size()]);
  return choices_tensor(mixed, 1);
}

// Values of different magnitudes. Rows after the selected rows are large.
at::Tensor recipe_rows(const Selection& selection, std::int64_t width, std::uint64_t seed) {
  at::Tensor values = random_tensor({selection.room, width}, seed, at::TensorOptions(at::kFloat));
  for (std::int64_t row = 0; row < selection.room; ++row)
    values[row].mul_(row < selection.rows() ? std::ldexp(1.0, static_cast<int>(row * 5 % 7) - 3) : 1e30);
  return values.to(at::kBFloat16);
}

struct Gradients {
  at::Tensor dx, dw;
};

class ExpertsRecipe : public testing::TestWithParam<at::DeviceType> {
 protected:
  void SetUp() override {
    if (GetParam() == at::kCUDA && !has_cuda()) GTEST_SKIP() << "no CUDA device";
    steps_ = here(choices_tensor({kTrainStep, kTrainStep + 1}, 1).to(at::kLong));
  }
  at::Tensor here(const at::Tensor& host) const { return host.to(at::Device(GetParam())); }

  quant::StackRounding rounding(std::int64_t step = kTrainStep) const {
    return {.site = {.seed = 4,
                     .parameter = base::name_hash("w"),
                     .matrix = static_cast<std::uint32_t>(kLocal.first),
                     .part = 1},
            .step = steps_.const_data_ptr<std::int64_t>() + (step - kTrainStep),
            .first_token = kFirstToken};
  }
  // The rounding of a local expert on the host.
  static quant::StochasticRounding on_host(const quant::StackRounding& rounding, std::int64_t expert) {
    static constexpr std::int64_t step = kTrainStep;
    quant::StochasticRounding own = rounding.of(expert);
    if (own.step != nullptr) own.step = &step;
    return own;
  }

  static RowQuantization quantization(const at::Tensor& rows, const Selection& selection, RowMatrices matrices,
                                      bool transform, const quant::StackRounding& rounding) {
    return {.encoding = kGradients,
            .whole = grouped_scales(kGradients, amaxes_of_rows(rows, selection, matrices, transform)),
            .transform = transform,
            .rounding = rounding};
  }
  static Gradients gradients(const at::Tensor& dy, const at::Tensor& x, const StackFactor& w,
                             const Selection& selection, bool transform, const quant::StackRounding& rounding) {
    using enum RowMatrices;
    Gradients result{.dx = grouped_dgrad(dy, quantization(dy, selection, blocks, false, rounding), w, selection),
                     .dw = at::full(w.values.sizes(), std::nan(""), w.values.options())};
    grouped_wgrad({.rows = dy, .as = quantization(dy, selection, experts, transform, rounding)},
                  {.rows = x, .as = quantization(x, selection, experts, transform, {})}, selection, result.dw, false);
    return result;
  }
  // A stack of identity matrices, so that dx are the decoded rows times alpha.
  StackFactor identities(std::int64_t width) const {
    at::Tensor values = at::empty({kLocal.count * width, width}, at::kBFloat16);
    for (std::int64_t i = 0; i < kLocal.count; ++i) values.narrow(0, i * width, width).copy_(at::eye(width));
    return {.values = here(values), .encoding = weight_encoding(Format::fp8_block), .whole = {}};
  }

  at::Tensor steps_;  // kTrainStep and the next step
};
INSTANTIATE_TEST_SUITE_P(Devices, ExpertsRecipe, testing::Values(at::kCPU, at::kCUDA),
                         [](const auto& device) { return device.param == at::kCPU ? "Cpu" : "Cuda"; });

TEST_P(ExpertsRecipe, AmaxesAreThoseOfTheTransformedRowsOfEachExpert) {
  const Selection host = select_rows(uneven_choices(), kLocal, 2), own = select_rows(here(uneven_choices()), kLocal, 2);
  for (const std::int64_t width : {1, 7, 300}) {
    at::Tensor rows = recipe_rows(host, width, 4);
    rows[host.rows_of(4).first].fill_(std::nan(""));  // NaNs are ignored
    const at::Tensor amaxes = amaxes_of_rows(here(rows), own, RowMatrices::experts, /*transform=*/true).cpu();
    for (std::int64_t expert = 0; expert < kLocal.count; ++expert) {
      const auto [begin, end] = host.rows_of(expert);
      const float expected =
          begin == end ? 0 : definition(rows.narrow(0, begin, end - begin), kGradients, {.transform = true}).number;
      EXPECT_EQ(amaxes[expert].item<float>(), expected) << "expert " << expert << ", width " << width;
    }
  }
}

// With the amax 2688 of every matrix, alpha of a product with identity matrices is 1, and dx are the decoded rows.
TEST_P(ExpertsRecipe, RowsAreRoundedAsTheirTokens) {
  constexpr std::int64_t kWidth = 40;
  const Selection host = select_rows(uneven_choices(), kLocal, 2), own = select_rows(here(uneven_choices()), kLocal, 2);
  const at::Tensor dy = recipe_rows(host, kWidth, 1);
  const RowQuantization as{.encoding = kGradients,
                           .whole = {.multiplier = {}, .inverse = {}, .amax = here(at::full({1}, 2688.0F))},
                           .rounding = rounding()};
  const at::Tensor dx = grouped_dgrad(here(dy), as, identities(kWidth), own).cpu();
  for (std::int64_t expert = 0; expert < kLocal.count; ++expert) {
    const auto [begin, end] = host.rows_of(expert);
    if (begin == end) continue;
    Recipe how{.rounding = on_host(rounding(), expert), .amax = 2688.0F};
    for (std::int64_t row = begin; row < end; ++row) how.tokens.push_back(host.tokens[row].item<std::int64_t>());
    const Decoded expected = definition(dy.narrow(0, begin, end - begin), kGradients, how);
    EXPECT_TRUE((dx.narrow(0, begin, end - begin) == expected.bytes).all().item<bool>()) << "expert " << expert;
  }
}

TEST_P(ExpertsRecipe, ProductsHaveTheRecipeOfTheirExperts) {
  constexpr std::int64_t kOut = 24, kIn = 40;
  const Selection host = select_rows(uneven_choices(), kLocal, 2), own = select_rows(here(uneven_choices()), kLocal, 2);
  const at::Tensor dy = recipe_rows(host, kOut, 1), x = recipe_rows(host, kIn, 2),
                   w = random_tensor({kLocal.count * kOut, kIn}, 3, at::kBFloat16);
  const quant::Encoding of_w = columnwise_encoding(Format::nvfp4);
  const StackFactor stack =
      decode_stack(here(w), kLocal.count, of_w, grouped_scales(of_w, amaxes_of_stack(here(w), kLocal.count)));
  for (const bool transform : {false, true})
    for (const quant::StackRounding& how : {quant::StackRounding{}, rounding()}) {
      SCOPED_TRACE(testing::Message() << "transform " << transform << ", random " << (how.step != nullptr));
      const Gradients got = gradients(here(dy), here(x), stack, own, transform, how);
      for (std::int64_t expert = 0; expert < kLocal.count; ++expert) {
        SCOPED_TRACE(testing::Message() << "expert " << expert);
        const at::Tensor own_dw = got.dw.narrow(0, expert * kOut, kOut);
        const auto [begin, end] = host.rows_of(expert);
        if (begin == end) {
          EXPECT_EQ(own_dw.count_nonzero().item<std::int64_t>(), 0);
          continue;
        }
        Decoded left = definition(dy.narrow(0, begin, end - begin), quant::by_columns(kGradients),
                                  {.transform = transform, .rounding = on_host(how, expert)}),
                right = definition(x.narrow(0, begin, end - begin), quant::by_columns(kGradients),
                                   {.transform = transform});
        left.values = left.values.t(), right.values = right.values.t();
        expect_product(own_dw, left, right);
        Decoded columns = definition(w.narrow(0, expert * kOut, kOut), of_w);
        columns.values = columns.values.t();
        for (std::int64_t block = 0; block < 2; ++block) {
          const auto [first, last] = host.rows_of(expert, block);
          if (first == last) continue;
          Recipe rows{.rounding = on_host(how, expert)};
          for (std::int64_t row = first; row < last; ++row)
            rows.tokens.push_back(host.tokens[row].item<std::int64_t>());
          expect_product(got.dx.narrow(0, first, last - first),
                         definition(dy.narrow(0, first, last - first), kGradients, rows), columns);
        }
      }
    }
}

// The rows are inverse transforms of whole numbers up to 6, with a 6 in every tile. With the amax 2688, quantization
// keeps the transformed rows, so the transform alone could change dw.
TEST_P(ExpertsRecipe, TheTransformAloneDoesNotChangeDw) {
  constexpr std::int64_t kOut = 5, kIn = 7;
  std::vector<std::int32_t> experts(32, 2);
  experts.insert(experts.end(), 16, 4);
  experts.insert(experts.end(), 48, 7);
  const Selection selection = select_rows(here(choices_tensor(experts, 1)), kLocal, 1);
  const auto spread_rows = [&](std::int64_t width, std::int64_t factor) {
    at::Tensor rows = at::zeros({selection.room, width}, at::kFloat);
    for (std::int64_t row = 0; row < selection.room; ++row)
      for (std::int64_t col = 0; col < width; ++col) {
        constexpr float kNumbers[] = {6, -1, 2, 0, -3, 4, 1};
        const float value = row % 16 == 0 ? 6 : kNumbers[(row * factor + col) % 7];
        for (std::int64_t i = 0; i < 16; ++i) {  // x = x' (diag(s) H / 4)^T
          const bool is_negative =
              (std::popcount(static_cast<unsigned>(i & row % 16)) + (quant::kHadamardSigns >> i & 1)) % 2;
          rows[row / 16 * 16 + i][col] += (is_negative ? -0.25F : 0.25F) * value;
        }
      }
    return rows;
  };
  const at::Tensor dy = spread_rows(kOut, 3), x = spread_rows(kIn, 5);
  const RowQuantization as{.encoding = kGradients,
                           .whole = {.multiplier = {}, .inverse = {}, .amax = here(at::full({1}, 2688.0F))},
                           .transform = true};
  at::Tensor dw = here(at::zeros({kLocal.count * kOut, kIn}, GetParam() == at::kCUDA ? at::kBFloat16 : at::kFloat));
  const at::Tensor left = here(dy.to(at::kBFloat16)), right = here(x.to(at::kBFloat16));
  EXPECT_TRUE(left.cpu().to(at::kFloat).equal(dy));
  grouped_wgrad({.rows = left, .as = as}, {.rows = right, .as = as}, selection, dw, /*accumulate=*/false);
  std::int64_t begin = 0;
  for (const auto& [expert, rows] : {std::pair<std::int64_t, std::int64_t>{0, 32}, {2, 16}, {5, 48}}) {
    at::Tensor expected = dy.narrow(0, begin, rows).t().matmul(x.narrow(0, begin, rows));
    if (GetParam() == at::kCUDA) expected = expected.to(at::kBFloat16).to(at::kFloat);
    EXPECT_TRUE(dw.cpu().to(at::kFloat).narrow(0, expert * kOut, kOut).equal(expected)) << "expert " << expert;
    begin += rows;
  }
}

TEST_P(ExpertsRecipe, TheKeyOfAGradientChangesItsBits) {
  const Selection selection = select_rows(here(uneven_choices()), kLocal, 2);
  const Selection host = select_rows(uneven_choices(), kLocal, 2);
  const at::Tensor dy = here(recipe_rows(host, 24, 1)), x = here(recipe_rows(host, 24, 2));
  std::vector<quant::StackRounding> others(8, rounding());
  others[1] = rounding(kTrainStep + 1);
  ++others[2].site.seed, ++others[3].site.parameter, ++others[4].site.matrix, ++others[5].site.part;
  ++others[6].first_token;
  others[7].step = nullptr;
  std::vector<Gradients> results;
  for (const quant::StackRounding& other : others)
    results.push_back(gradients(dy, x, identities(24), selection, /*transform=*/true, other));
  const Gradients again = gradients(dy, x, identities(24), selection, /*transform=*/true, rounding());
  const auto used_dx = [&](const Gradients& of) { return of.dx.narrow(0, 0, host.rows()); };
  EXPECT_TRUE(same_bits(used_dx(again), used_dx(results[0])));
  EXPECT_TRUE(same_bits(again.dw, results[0].dw));
  for (std::size_t a = 0; a < results.size(); ++a)
    for (std::size_t b = 0; b < a; ++b) {
      EXPECT_FALSE(same_bits(used_dx(results[a]), used_dx(results[b]))) << a << " " << b;
      EXPECT_FALSE(same_bits(results[a].dw, results[b].dw)) << a << " " << b;
    }
}

// Every token chooses all experts, so that all experts have equal rows. They have different random numbers.
TEST_P(ExpertsRecipe, EqualRowsOfTwoExpertsHaveDifferentBits) {
  constexpr std::int64_t kTokens = 20, kWidth = 24;
  std::vector<std::int32_t> choices;
  for (std::int64_t token = 0; token < kTokens; ++token)
    for (std::int32_t expert = 2; expert < 8; ++expert) choices.push_back(expert);
  const Selection selection = select_rows(here(choices_tensor(choices, 6)), kLocal, 1);
  const at::Tensor one = random_tensor({kTokens, kWidth}, 1, at::kBFloat16), rows = here(one.repeat({6, 1}));
  for (const bool is_random : {false, true}) {
    const Gradients got = gradients(rows, rows, identities(kWidth), selection, /*transform=*/true,
                                    is_random ? rounding() : quant::StackRounding{});
    for (std::int64_t expert = 1; expert < kLocal.count; ++expert) {
      const auto differs = [&](const at::Tensor& all, std::int64_t size) {
        return !same_bits(all.narrow(0, 0, size), all.narrow(0, expert * size, size));
      };
      EXPECT_EQ(differs(got.dx, kTokens), is_random);
      EXPECT_EQ(differs(got.dw, kWidth), is_random);
    }
  }
}

TEST_P(ExpertsRecipe, ValuesThatAreNotFiniteReachTheProductsOfTheirExpertAlone) {
  const Selection host = select_rows(uneven_choices(), kLocal, 2), own = select_rows(here(uneven_choices()), kLocal, 2);
  for (const float value : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()})
    for (const bool in_gradient : {false, true}) {
      SCOPED_TRACE(testing::Message() << value << ", " << in_gradient);
      at::Tensor dy = recipe_rows(host, 24, 1), x = recipe_rows(host, 24, 2);
      const std::int64_t row = host.rows_of(2).first + 20;
      (in_gradient ? dy : x)[row][5].fill_(value);
      const Gradients got = gradients(here(dy), here(x), identities(24), own, /*transform=*/true, rounding());
      for (std::int64_t expert = 0; expert < kLocal.count; ++expert) {
        EXPECT_EQ(got.dw.narrow(0, expert * 24, 24).isfinite().all().item<bool>(), expert != 2) << expert;
        const auto [begin, end] = host.rows_of(expert);
        EXPECT_EQ(got.dx.narrow(0, begin, end - begin).isfinite().all().item<bool>(), !in_gradient || expert != 2);
      }
    }
}

TEST_P(ExpertsRecipe, IsRefusedWhereItHasNoMeaning) {
  const Selection selection = select_rows(here(uneven_choices()), kLocal, 2),
                  host = select_rows(uneven_choices(), kLocal, 2);
  const at::Tensor rows = here(recipe_rows(host, 24, 1));
  at::Tensor dw = here(at::zeros({kLocal.count * 24, 24}, at::kFloat));
  using enum RowMatrices;
  const RowQuantization plain = quantization(rows, selection, experts, false, {}),
                        transformed = quantization(rows, selection, experts, true, {});
  EXPECT_THROW(grouped_dgrad(rows, transformed, identities(24), selection), Error);
  EXPECT_THROW(grouped_wgrad({rows, transformed}, {rows, plain}, selection, dw, false), Error);
  EXPECT_THROW(amaxes_of_rows(rows, selection, blocks, true), Error);
  for (const bool transform : {false, true}) {
    RowQuantization other{.encoding = gradient_encoding(Format::mxfp8, quant::Fp8Recipe::hybrid),
                          .transform = transform};
    if (!transform) other.rounding = rounding();
    EXPECT_THROW(grouped_wgrad({rows, other}, {rows, other}, selection, dw, false), Error);
  }
}

}  // namespace
}  // namespace tessera::ops::test::formats
