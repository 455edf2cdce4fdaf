// Tests the norm alone against x / sqrt(mean(x^2) + eps) * weight.
#include "tessera/nn/layers/norm.h"

#include <gtest/gtest.h>

#include "tests/nn/layer_check.h"
#include "tests/nn/plain_formulas.h"

namespace tessera::nn {
namespace {

constexpr std::int64_t kHidden = 6;

Layer norm_layer(bool has_residual, const LayerCase& how) {
  Layer layer;
  layer.weights.push_back(whole_vector("norm", kHidden, how.tp, how.sequence_parallel && how.tp > 1));
  layer.inputs.push_back({kHidden, own_tokens()});
  if (has_residual) layer.inputs.push_back({kHidden, own_tokens()});
  layer.outputs.push_back(own_tokens());
  layer.forward = [has_residual](LayerRank& rank, const Sample& sample) -> std::vector<at::Tensor> {
    return {rms_norm(rank.pass, rank.keep(rank.norm("norm")), sample.inputs[0],
                     has_residual ? sample.inputs[1] : at::Tensor())};
  };
  layer.reference = [has_residual](const LogicalWeights& weights, const Sample& sample) -> std::vector<at::Tensor> {
    return {plain_norm(has_residual ? sample.inputs[0] + sample.inputs[1] : sample.inputs[0], weights.at("norm"))};
  };
  return layer;
}

TEST(RmsNorm, MatchesTheScaledSum) {
  for (const bool has_residual : {false, true})
    for (LayerCase how : layer_cases()) {
      check_layer(norm_layer(has_residual, how), how);
      how.frozen = "norm";
      check_layer(norm_layer(has_residual, how), how);
    }
}

// bf16 rounds the sum and the result once each, by 2^-9 of numbers that the norm keeps near 1. The gradient is that of
// the rounded sum. Statistics and the weight's gradient are fp32.
TEST(RmsNorm, InOtherTypesIsWithinRounding) {
  for (LayerCase how : layer_cases())
    for (const auto& [type, tolerance] : {std::pair{quant::DType::fp32, 1e-5}, std::pair{quant::DType::bf16, 0x1p-6}}) {
      how.type = type;
      how.tolerance = tolerance;
      check_layer(norm_layer(true, how), how);
    }
}

// x is the sum of three inputs. Each of them has the gradient of x.
TEST(RmsNorm, ReadsTheParts) {
  for (LayerCase how : layer_cases()) {
    Layer layer = norm_layer(true, how);
    layer.inputs.resize(4, layer.inputs[0]);
    layer.forward = [](LayerRank& rank, const Sample& sample) -> std::vector<at::Tensor> {
      const std::vector<at::Tensor>& in = sample.inputs;
      return {rms_norm(rank.pass, rank.keep(rank.norm("norm")), SummedParts({in[0], in[1], in[2]}), in[3])};
    };
    layer.reference = [](const LogicalWeights& weights, const Sample& sample) -> std::vector<at::Tensor> {
      const std::vector<at::Tensor>& in = sample.inputs;
      return {plain_norm(in[0] + in[1] + in[2] + in[3], weights.at("norm"))};
    };
    check_layer(layer, how);
  }
}

TEST(RmsNorm, RecordsItsWeightAndItsStash) {
  const LayerCase how{.microbatches = 1, .uses = 1};
  EXPECT_EQ(check_layer(norm_layer(true, how), how).first_rank,
            (std::vector<std::string>{"forward consume norm", "forward release norm", "forward stash keep 392",
                                      "backward fetch keep 392", "backward consume norm", "backward produce norm",
                                      "backward release norm"}));  // 7 tokens: the sum and a statistic
}

}  // namespace
}  // namespace tessera::nn
