// Tests column- and row-parallel layers against y = norm(x + residual) w^T + bias.
#include "tessera/nn/layers/linear.h"

#include <ATen/ops/matmul.h>
#include <ATen/ops/rsqrt.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/nn/layer_check.h"
#include "tests/nn/plain_formulas.h"

namespace tessera::nn {
namespace {

constexpr std::int64_t kIn = 6, kOut = 5;

struct ColumnParts {
  bool norm = false, residual = false, bias = false;
};

std::vector<at::Tensor> column_reference(const ColumnParts& has, const LogicalWeights& weights, const Sample& sample) {
  const at::Tensor sum = has.residual ? sample.inputs[0] + sample.inputs[1] : sample.inputs[0];
  const at::Tensor input = has.norm ? plain_norm(sum, weights.at("norm")) : sum;
  at::Tensor y = at::matmul(input, weights.at("w").t());
  if (has.bias) y = y + weights.at("bias");
  if (!has.norm) return {y};
  return {y, sum};
}

// The norm's sum is also an output.
Layer column_layer(const ColumnParts& has, const LayerCase& how) {
  const RankRanges parts = uneven_parts(kOut, how.tp);
  Layer layer;
  layer.weights.push_back(by_rows("w", kOut, kIn, parts));
  if (has.norm) layer.weights.push_back(whole_vector("norm", kIn, how.tp, how.sequence_parallel && how.tp > 1));
  if (has.bias) layer.weights.push_back(cut_vector("bias", kOut, parts));
  layer.inputs.push_back({kIn, own_tokens()});
  if (has.residual) layer.inputs.push_back({kIn, own_tokens()});
  layer.outputs.push_back(columns_of(parts));
  if (has.norm) layer.outputs.push_back(own_tokens());
  layer.forward = [has, tokens = layer.tokens](LayerRank& rank, const Sample& sample) -> std::vector<at::Tensor> {
    const ColumnLinear& linear =
        rank.keep(ColumnLinear{.weight = rank.weight("w"),
                               .norm = has.norm ? std::optional(rank.norm("norm")) : std::nullopt,
                               .bias = has.bias ? std::optional(rank.weight("bias")) : std::nullopt});
    const at::Tensor residual = has.residual ? sample.inputs[1] : at::Tensor();
    const NormedLinear result = column_linear(rank.pass, linear, sample.inputs[0], residual, tokens);
    EXPECT_EQ(result.sum.defined(), has.norm);
    if (!has.norm) return {result.y};
    return {result.y, result.sum};
  };
  layer.reference = [has](const LogicalWeights& weights, const Sample& sample) {
    return column_reference(has, weights, sample);
  };
  return layer;
}

TEST(ColumnLinear, MatchesTheProductOfTheNormalizedSumPlusTheBias) {
  for (const ColumnParts& has : std::vector<ColumnParts>{{},
                                                         {.bias = true},
                                                         {.norm = true},
                                                         {.norm = true, .residual = true},
                                                         {.norm = true, .residual = true, .bias = true}})
    for (LayerCase how : layer_cases())
      for (const Recompute recompute : {Recompute::none, Recompute::selective}) {
        SCOPED_TRACE(fmt::format("norm {}, residual {}, bias {}", has.norm, has.residual, has.bias));
        how.recompute = recompute;
        check_layer(column_layer(has, how), how);
      }
}

// Without the sum, the gradient of the residual stream is that of the norm alone.
TEST(ColumnLinear, TheSumMayBeUnused) {
  for (const LayerCase& how : layer_cases()) {
    Layer layer = column_layer({.norm = true, .residual = true}, how);
    layer.outputs.resize(1);
    const auto first_of = [](std::vector<at::Tensor> outputs) { return std::vector{outputs[0]}; };
    layer.forward = [=, whole = layer.forward](LayerRank& rank, const Sample& sample) {
      return first_of(whole(rank, sample));
    };
    layer.reference = [=, whole = layer.reference](const LogicalWeights& weights, const Sample& sample) {
      return first_of(whole(weights, sample));
    };
    check_layer(layer, how);
  }
}

Layer row_layer(const LayerCase& how) {
  const RankRanges parts = uneven_parts(kIn + 1, how.tp);
  Layer layer;
  layer.weights.push_back(by_columns("w", kOut, kIn + 1, parts));
  layer.inputs.push_back({kIn + 1, columns_of(parts)});
  layer.outputs.push_back(own_tokens());
  layer.forward = [](LayerRank& rank, const Sample& sample) -> std::vector<at::Tensor> {
    const SummedParts y = row_linear(rank.pass, rank.keep(RowLinear{rank.weight("w")}), sample.inputs[0]);
    return {sum_of(rank.pass, y)};
  };
  layer.reference = [](const LogicalWeights& weights, const Sample& sample) -> std::vector<at::Tensor> {
    return {at::matmul(sample.inputs[0], weights.at("w").t())};
  };
  return layer;
}

TEST(RowLinear, MatchesTheSumOfTheRanksProducts) {
  for (const LayerCase& how : layer_cases()) check_layer(row_layer(how), how);
}

TEST(Linear, AFrozenWeightHasNoGradientButItsInputDoes) {
  for (LayerCase how : layer_cases())
    for (const std::string frozen : {"w", "norm", "bias"}) {
      how.frozen = frozen;
      check_layer(column_layer({.norm = true, .residual = true, .bias = true}, how), how);
      if (frozen == "w") check_layer(row_layer(how), how);
    }
}

// A bf16 number has 8 significant bits, so a rounding has a relative error of at most 2^-9. Each input of a product is
// rounded once, and its result once more. Over tp each rank's part is also rounded, and gradients that sum the parts of
// 2 ranks add the parts' errors.
TEST(Linear, InOtherTypesIsWithinRounding) {
  for (LayerCase how : layer_cases())
    for (const auto& [type, tolerance] : {std::pair{quant::DType::fp32, 1e-5}, std::pair{quant::DType::bf16, 0x1p-6}}) {
      how.type = type;
      how.tolerance = tolerance;
      check_layer(column_layer({.norm = true, .residual = true, .bias = true}, how), how);
      check_layer(row_layer(how), how);
    }
}

// The numbers of these cases are exact in fp8 after scaling, and so are their products and sums. Only results are
// rounded to bf16, by 2^-9, and over tp also their parts. An fp8 code would have errors of up to 2^-4.
TEST(Linear, InFp8MultipliesScaledNumbers) {
  for (LayerCase how : layer_cases()) {
    how.type = quant::DType::bf16;
    how.product = quant::Format::fp8;
    how.tolerance = 0x1p-7;
    check_layer(column_layer({}, how), how);
    check_layer(row_layer(how), how);
  }
}

TEST(ColumnLinear, RecordsEachUseOfItsWeights) {
  LayerCase how{.tp = 2, .sequence_parallel = true, .microbatches = 1, .uses = 1};
  // There are 7 tokens of 6 numbers each, and 3 of the tokens are on this rank. The layer keeps the norm's result, the
  // sum and one statistic for each token.
  const auto expected = [](int stashed, bool again) {
    std::vector<std::string> lines{"forward consume norm",
                                   "forward release norm",
                                   "forward comm all_gather 144",
                                   "forward consume w",
                                   "forward release w",
                                   "forward consume bias",
                                   "forward release bias",
                                   fmt::format("forward stash shard {}", stashed),
                                   fmt::format("backward fetch shard {}", stashed),
                                   "backward produce bias"};
    if (again) lines.insert(lines.end(), {"recompute consume norm", "recompute release norm"});
    lines.insert(lines.end(), {"backward comm all_gather 144", "backward consume w", "backward release w",
                               "backward comm reduce_scatter 336", "backward produce w", "backward consume norm",
                               "backward produce norm", "backward release norm"});
    return lines;
  };
  const ColumnParts has{.norm = true, .residual = true, .bias = true};
  EXPECT_EQ(check_layer(column_layer(has, how), how).first_rank, expected(3 * (6 + 6 + 1) * 8, false));
  how.recompute = Recompute::selective;
  EXPECT_EQ(check_layer(column_layer(has, how), how).first_rank, expected(3 * (6 + 1) * 8, true));
}

TEST(RowLinear, RecordsEachUseOfItsWeight) {
  const LayerCase how{.tp = 2, .microbatches = 1, .uses = 1};
  // The input has 7 tokens of 4 columns (of 7), and the output has 7 x 5 numbers.
  EXPECT_EQ(check_layer(row_layer(how), how).first_rank,
            (std::vector<std::string>{"forward consume w", "forward release w", "forward comm all_reduce sum 280",
                                      "forward stash keep 224", "backward fetch keep 224", "backward consume w",
                                      "backward release w", "backward produce w"}));
}

}  // namespace
}  // namespace tessera::nn
