// Tests down(silu(gate) * up) of the normalized sum, over parts of the inner columns.
#include "tessera/nn/layers/feed_forward.h"

#include <gtest/gtest.h>

#include "tests/nn/layer_check.h"
#include "tests/nn/plain_formulas.h"

namespace tessera::nn {
namespace {

constexpr std::int64_t kStream = 6, kInner = 5;

Layer feed_forward_layer(bool has_residual, const LayerCase& how) {
  const RankRanges parts = uneven_parts(kInner, how.tp);
  Layer layer;
  layer.weights.push_back(by_rows("gate_up", 2 * kInner, kStream, stacked_parts(parts, kInner, 2)));
  layer.weights.push_back(by_columns("down", kStream, kInner, parts));
  layer.weights.push_back(whole_vector("norm", kStream, how.tp, how.sequence_parallel && how.tp > 1));
  layer.inputs.push_back({kStream, own_tokens()});
  if (has_residual) layer.inputs.push_back({kStream, own_tokens()});
  layer.outputs = {own_tokens(), own_tokens()};
  layer.forward = [=, tokens = layer.tokens](LayerRank& rank, const Sample& sample) -> std::vector<at::Tensor> {
    const FeedForward& layers =
        rank.keep(FeedForward{.gate_up = {.weight = rank.weight("gate_up"), .norm = rank.norm("norm"), .bias = {}},
                              .down = {.weight = rank.weight("down")}});
    const at::Tensor residual = has_residual ? sample.inputs[1] : at::Tensor();
    const FeedForwardOutput result = feed_forward(rank.pass, layers, sample.inputs[0], residual, tokens);
    return {sum_of(rank.pass, result.y), result.sum};
  };
  layer.reference = [=](const LogicalWeights& weights, const Sample& sample) -> std::vector<at::Tensor> {
    const at::Tensor sum = has_residual ? sample.inputs[0] + sample.inputs[1] : sample.inputs[0];
    return {plain_feed_forward(plain_norm(sum, weights.at("norm")), weights.at("gate_up"), weights.at("down")), sum};
  };
  return layer;
}

TEST(FeedForward, MatchesTheFormulaOverAllInnerColumns) {
  for (const bool has_residual : {false, true})
    for (LayerCase how : layer_cases())
      for (const Recompute recompute : {Recompute::none, Recompute::selective}) {
        how.recompute = recompute;
        check_layer(feed_forward_layer(has_residual, how), how);
      }
}

TEST(FeedForward, OnlyTheFrozenWeightHasNoGradient) {
  for (LayerCase how : layer_cases())
    for (const std::string frozen : {"gate_up", "down", "norm"}) {
      how.frozen = frozen;
      how.recompute = Recompute::selective;
      check_layer(feed_forward_layer(true, how), how);
    }
}

// bf16 rounds the norm's result, gate and up, SwiGLU's result and y, each with a relative error of 2^-9. Backward has
// the same number of roundings.
TEST(FeedForward, InOtherTypesIsWithinRounding) {
  for (LayerCase how : layer_cases())
    for (const auto& [type, tolerance] : {std::pair{quant::DType::fp32, 1e-5}, std::pair{quant::DType::bf16, 0x1p-5}}) {
      how.type = type;
      how.tolerance = tolerance;
      check_layer(feed_forward_layer(true, how), how);
    }
}

TEST(FeedForward, KeepsTheTensorsOfItsPolicy) {
  LayerCase how{.microbatches = 1, .uses = 1};
  const auto events = [&] { return check_layer(feed_forward_layer(true, how), how).first_rank; };
  // 7 tokens: the norm's result, the sum and a statistic; gate, up and SwiGLU's result.
  EXPECT_EQ(
      events(),
      (std::vector<std::string>{
          "forward consume norm", "forward release norm", "forward consume gate_up", "forward release gate_up",
          "forward stash keep 728", "forward consume down", "forward release down", "forward stash keep 840",
          "backward fetch keep 840", "backward consume down", "backward release down", "backward produce down",
          "backward fetch keep 728", "backward consume gate_up", "backward release gate_up", "backward produce gate_up",
          "backward consume norm", "backward produce norm", "backward release norm"}));
  how.recompute = Recompute::selective;  // without the results of the norm and of SwiGLU
  EXPECT_EQ(events(), (std::vector<std::string>{
                          "forward consume norm",     "forward release norm",     "forward consume gate_up",
                          "forward release gate_up",  "forward stash keep 392",   "forward consume down",
                          "forward release down",     "forward stash keep 560",   "backward fetch keep 560",
                          "backward consume down",    "backward release down",    "backward produce down",
                          "backward fetch keep 392",  "recompute consume norm",   "recompute release norm",
                          "backward consume gate_up", "backward release gate_up", "backward produce gate_up",
                          "backward consume norm",    "backward produce norm",    "backward release norm"}));
}

}  // namespace
}  // namespace tessera::nn
