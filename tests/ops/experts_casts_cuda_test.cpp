// Tests the kernels that quantize and decode rows of experts: the results have the bytes of the definition. Skipped
// without a CUDA device.
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tessera/base/cuda_only.h"
#include "tessera/base/text/name_hash.h"
#include "tessera/ops/grouped/grouped_casts.h"
#include "tessera/ops/grouped/grouped_formats.h"
#include "tessera/ops/tensor.h"
#include "tessera/quant/formats/decoded.h"
#include "tests/ops/decoded_matrices.h"
#include "tests/ops/experts_values.h"

namespace tessera::ops::test::formats {
namespace {

using quant::Encoding;

class OnCudaCastsOfExperts : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_cuda()) GTEST_SKIP() << "no CUDA device";
  }
};

at::Tensor on_gpu(const at::Tensor& host) {
  return host.to(at::Device(at::kCUDA, 0));
}

TEST_F(OnCudaCastsOfExperts, EndsOfBlocksAreThoseOfTheHost) {
  for (const ExpertsCase& it : experts_cases()) {
    SCOPED_TRACE(it);
    const at::Tensor choices = random_choices(it.tokens(), it.k, it.local.all, 3);
    const Selection host = select_rows(choices, it.local, it.blocks);
    const at::Tensor ends = select_rows(on_gpu(choices), it.local, it.blocks).block_ends.cpu();
    ASSERT_EQ(ends.numel(), it.local.count * it.blocks);
    for (std::int64_t i = 0; i < ends.numel(); ++i)
      EXPECT_EQ(ends[i].item<int>(), host.rows_of(i / it.blocks, i % it.blocks).second) << i;
  }
}

// Blocks of many tokens, whose ends are inside chunks of the kernel. With limited room, the ends are limited too.
TEST_F(OnCudaCastsOfExperts, EndsOfLargeBlocksAreThoseOfTheHost) {
  const LocalExperts local{.first = 1, .count = 5, .all = 7};
  const at::Tensor choices = random_choices(3 * 701, 2, 7, 4);
  const Selection host = select_rows(choices, local, 3);
  for (const double factor : {0.0, 0.6}) {
    const Selection selection = select_rows(on_gpu(choices), local, 3, {.factor = factor});
    const at::Tensor ends = selection.block_ends.cpu();
    for (std::int64_t i = 0; i < ends.numel(); ++i)
      EXPECT_EQ(ends[i].item<std::int64_t>(), std::min(host.rows_of(i / 3, i % 3).second, selection.room)) << i;
  }
}

// Six matrices in 500 rows. The second one has no rows, the fourth one has values that are not finite, and the last 20
// rows belong to none.
constexpr std::int64_t kMatrices = 6, kRoom = 500, kUnused = 20;
constexpr std::int32_t kEnds[kMatrices] = {5, 5, 21, 37, 180, kRoom - kUnused};
constexpr float kPartner = 0.37F;
const Encoding kPartnerEncoding = weight_encoding(quant::Format::fp8);

at::Tensor rows_with(std::int64_t cols) {
  at::Tensor rows = random_tensor({kRoom, cols}, 1, at::kBFloat16);
  at::Tensor spoiled = rows.narrow(0, kEnds[2], kEnds[3] - kEnds[2]);
  spoil(spoiled);
  rows.narrow(0, kRoom - kUnused, kUnused).fill_(std::nan(""));
  return rows;
}

// The recipe of nvfp4 for rows of two experts, with three matrices each.
struct RecipeOfCast {
  bool transform = false, is_random = false;
};
constexpr std::int64_t kStep = 9;
const quant::StackRounding kRounding{.site = {.seed = 3, .parameter = base::name_hash("w"), .matrix = 4, .part = 1},
                                     .first_token = 1000};
// A token of a row.
std::int64_t token_of(std::int64_t row) {
  return row * 37 % 701;
}

// Returns the decoded rows times alpha, in memory that was filled with 7.
at::Tensor cast_rows(const at::Tensor& rows, const Encoding& encoding, bool is_spread, const RecipeOfCast& recipe) {
  const at::Tensor source = on_gpu(rows), ends = on_gpu(choices_tensor({kEnds, kEnds + kMatrices}, 1)),
                   target = on_gpu(at::full({kRoom + kExpertRows * kMatrices, rows.size(1)}, 7, at::kBFloat16)),
                   amaxes = on_gpu(at::zeros({kMatrices}, at::kFloat)),
                   memory = on_gpu(at::zeros({2, kMatrices}, at::kInt)),
                   partners = on_gpu(at::full({2}, kPartner, at::kFloat)),
                   step = on_gpu(at::full({1}, kStep, at::kLong));
  at::Tensor tokens = at::zeros({kRoom}, at::kInt);
  for (std::int64_t row = 0; row < kRoom; ++row) tokens[row].fill_(token_of(row));
  tokens = on_gpu(tokens);
  quant::StackRounding rounding = kRounding;
  if (recipe.is_random) rounding.step = step.const_data_ptr<std::int64_t>();
  const StackedRows from{.values = static_cast<const quant::bfloat16*>(source.const_data_ptr()),
                         .room = kRoom,
                         .cols = rows.size(1),
                         .matrices = kMatrices,
                         .ends = ends.const_data_ptr<std::int32_t>()};
  const base::CudaStream stream = stream_of(source);
  auto* places_memory = memory.mutable_data_ptr<std::int32_t>();
  const StripPlaces places{.strip_ends = places_memory, .result_ends = places_memory + kMatrices};
  base::cuda_only<cuda::find_places>(from, 16, places, stream, 0);
  base::cuda_only<cuda::take_grouped_amaxes>(
      {.source = from, .places = places, .amaxes = amaxes.mutable_data_ptr<float>(), .transform = recipe.transform},
      stream);
  base::cuda_only<cuda::find_places>(from, strip_rows(encoding), places, stream, 0);
  const WholeScale whole = grouped_scales(encoding, amaxes);
  const at::Tensor numbers = numbers_of(encoding, whole),
                   scales = has_one_scale(encoding) ? whole.multiplier : whole.amax;
  const auto numbers_at = [](const at::Tensor& it) {
    return MatrixNumbers{.values = it.defined() ? it.const_data_ptr<float>() : nullptr};
  };
  base::cuda_only<cuda::cast_grouped>({.source = from,
                                       .encoding = encoding,
                                       .places = places,
                                       .scales = numbers_at(scales),
                                       .per_expert = kMatrices / 2,
                                       .multiplies = true,
                                       .own = numbers_at(numbers),
                                       .partner = numbers_at(partners),
                                       .partner_encoding = kPartnerEncoding,
                                       .target = static_cast<quant::bfloat16*>(target.mutable_data_ptr()),
                                       .is_spread = is_spread,
                                       .transform = recipe.transform,
                                       .rounding = rounding,
                                       .row_tokens = is_spread ? nullptr : tokens.const_data_ptr<std::int32_t>()},
                                      stream);
  return target.cpu();
}

// Returns the values of a decoded matrix times alpha, which are rounded to fp32 and then to bf16.
at::Tensor times_alpha_of_partner(const Decoded& decoded, const Encoding& encoding) {
  const float alpha = product_alpha(encoding, decoded.number, kPartnerEncoding, kPartner);
  at::Tensor values = decoded.values.to(at::kFloat).mul(alpha).to(at::kBFloat16);
  values.view(at::kShort).masked_fill_(values.isnan(), 0x7FFF);
  return values;
}

// Returns the decoded values of rows [begin, begin + size), which are matrix `i`.
Decoded expected_matrix(const at::Tensor& rows, std::int64_t begin, std::int64_t size, const Encoding& encoding,
                        std::int64_t i, const RecipeOfCast& recipe) {
  const at::Tensor matrix = rows.narrow(0, begin, size).contiguous();
  if (!recipe.transform && !recipe.is_random) return definition(matrix, encoding);
  Recipe how{.transform = recipe.transform};
  if (recipe.is_random) how.rounding = kRounding.of(i / (kMatrices / 2));
  if (recipe.is_random) how.rounding.step = &kStep;
  for (std::int64_t row = begin; encoding.tile.rows == 1 && row < begin + size; ++row)
    how.tokens.push_back(token_of(row));
  return definition(matrix, encoding, how);
}

void expect_rows(const at::Tensor& got, const at::Tensor& rows, const Encoding& encoding, bool is_spread,
                 const RecipeOfCast& recipe) {
  std::int64_t begin = 0, to = 0;
  for (std::int64_t i = 0; i < kMatrices; ++i) {
    const std::int64_t size = kEnds[i] - begin;
    const std::int64_t spread = is_spread ? (size + kExpertRows - 1) / kExpertRows * kExpertRows : size;
    std::int64_t written = 0;  // rows whose values are not padding
    if (size > 0) {
      const Decoded expected = expected_matrix(rows, begin, size, encoding, i, recipe);
      written = expected.bytes.size(0);
      EXPECT_TRUE(same_bits(got.narrow(0, to, written), times_alpha_of_partner(expected, encoding))) << "matrix " << i;
    }
    EXPECT_EQ(got.narrow(0, to + written, spread - written).count_nonzero().item<std::int64_t>(), 0) << "matrix " << i;
    begin += size;
    to += spread;
  }
  EXPECT_TRUE((got.narrow(0, to, kUnused) == 7).all().item<bool>()) << "rows after the last matrix";
}

// By columns, the matrices of the result begin at multiples of 16 rows.
TEST_F(OnCudaCastsOfExperts, RowsHaveTheBytesOfTheDefinition) {
  for (const Kinds& kind : kKinds)
    for (const bool by_columns : {false, true})
      for (const std::int64_t cols : {1, 34, 35, 1040})
        for (Encoding encoding : {kind.input(), kind.gradient()}) {
          SCOPED_TRACE(testing::Message() << kind << ", " << cols << " columns, by columns " << by_columns);
          if (by_columns) encoding = quant::by_columns(encoding);
          const at::Tensor rows = rows_with(cols);
          expect_rows(cast_rows(rows, encoding, by_columns, {}), rows, encoding, by_columns, {});
        }
}

TEST_F(OnCudaCastsOfExperts, RowsHaveTheBytesOfTheRecipe) {
  for (const RecipeOfCast& recipe : {RecipeOfCast{true, false}, {false, true}, {true, true}})
    for (const bool by_columns : {false, true})
      for (const std::int64_t cols : {1, 34, 35, 1040}) {
        if (recipe.transform && !by_columns) continue;
        SCOPED_TRACE(testing::Message() << "transform " << recipe.transform << ", random " << recipe.is_random << ", "
                                        << cols << " columns, by columns " << by_columns);
        Encoding encoding = gradient_encoding(quant::Format::nvfp4, quant::Fp8Recipe::hybrid);
        if (by_columns) encoding = quant::by_columns(encoding);
        const at::Tensor rows = rows_with(cols);
        expect_rows(cast_rows(rows, encoding, by_columns, recipe), rows, encoding, by_columns, recipe);
      }
}

}  // namespace
}  // namespace tessera::ops::test::formats
