// Tests a transformer block under every recompute policy against its formulas.
#include "tessera/nn/layers/block.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/nn/head_cut.h"
#include "tests/nn/layer_check.h"
#include "tests/nn/plain_formulas.h"

namespace tessera::nn {
namespace {

constexpr std::int64_t kBlockHidden = 6, kBlockInner = 5;

struct BlockParts {
  bool residual = false, bias = false, head_norms = false;
};

Block block_of(LayerRank& rank, const BlockParts& has, const HeadCut& cut, Recompute recompute) {
  Block block;
  block.qkv = {.weight = rank.weight("qkv"), .norm = rank.norm("attention_norm"), .bias = {}};
  if (has.bias) block.qkv.bias = rank.weight("bias");
  block.heads = cut.heads[static_cast<std::size_t>(rank.context.tp_rank())];
  if (has.head_norms) block.head_norms = HeadNorms{.q = rank.norm("q_norm"), .k = rank.norm("k_norm")};
  block.attention_output = {.weight = rank.weight("output")};
  block.feed_forward.gate_up = {.weight = rank.weight("gate_up"), .norm = rank.norm("mlp_norm"), .bias = {}};
  block.feed_forward.down = {.weight = rank.weight("down")};
  block.recompute = recompute;
  return block;
}

std::vector<at::Tensor> block_reference(const BlockParts& has, const LogicalWeights& weights, const Sample& sample) {
  const at::Tensor stream = has.residual ? sample.inputs[0] + sample.inputs[1] : sample.inputs[0];
  at::Tensor qkv = plain_linear(plain_norm(stream, weights.at("attention_norm")), weights.at("qkv"));
  if (has.bias) qkv = qkv + weights.at("bias");
  const at::Tensor q_norm = has.head_norms ? weights.at("q_norm") : at::Tensor();
  const at::Tensor k_norm = has.head_norms ? weights.at("k_norm") : at::Tensor();
  const at::Tensor attended = plain_attention(qkv, q_norm, k_norm, Documents::sequences);
  const at::Tensor sum = stream + plain_linear(attended, weights.at("output"));
  return {plain_feed_forward(plain_norm(sum, weights.at("mlp_norm")), weights.at("gate_up"), weights.at("down")), sum};
}

std::vector<LayerWeight> block_weights(const BlockParts& has, const HeadCut& cut, const LayerCase& how) {
  const bool partial = how.sequence_parallel && how.tp > 1;
  const RankRanges inner = uneven_parts(kBlockInner, how.tp);
  std::vector<LayerWeight> weights{
      whole_vector("attention_norm", kBlockHidden, how.tp, partial),
      by_rows("qkv", HeadCut::kWidth, kBlockHidden, cut.qkv_columns),
      by_columns("output", kBlockHidden, HeadCut::kQ * HeadCut::kDim, cut.q_columns),
      whole_vector("mlp_norm", kBlockHidden, how.tp, partial),
      by_rows("gate_up", 2 * kBlockInner, kBlockHidden, stacked_parts(inner, kBlockInner, 2)),
      by_columns("down", kBlockHidden, kBlockInner, inner)};
  if (has.bias) weights.push_back(cut_vector("bias", HeadCut::kWidth, cut.qkv_columns));
  if (!has.head_norms) return weights;
  for (const char* name : {"q_norm", "k_norm"})
    weights.push_back(whole_vector(name, HeadCut::kDim, how.tp, /*partial_gradient=*/true));
  return weights;
}

Layer block_layer(const BlockParts& has, const LayerCase& how) {
  const HeadCut cut = head_cut(how.tp);
  Layer layer{.weights = block_weights(has, cut, how), .tokens = kAttentionTokens};
  layer.inputs.push_back({kBlockHidden, own_tokens()});
  if (has.residual) layer.inputs.push_back({kBlockHidden, own_tokens()});
  layer.outputs = {own_tokens(), own_tokens()};
  layer.forward = [=](LayerRank& rank, const Sample& sample) -> std::vector<at::Tensor> {
    const Block& block = rank.keep(block_of(rank, has, cut, how.recompute));
    const ops::RopeTable rope =
        ops::make_rope_table(kAttentionTokens, HeadCut::kDim, kTheta, {}, sample.inputs[0].scalar_type());
    const Stream in{sample.inputs[0], has.residual ? sample.inputs[1] : at::Tensor()};
    const Stream out = block_forward(rank.pass, block, in, token_layout(Documents::sequences), rope).stream;
    return {sum_of(rank.pass, out.h), out.residual};
  };
  layer.reference = [=](const LogicalWeights& weights, const Sample& sample) {
    return block_reference(has, weights, sample);
  };
  return layer;
}

TEST(Block, MatchesItsFormulasUnderEveryPolicy) {
  for (const BlockParts& has : std::vector<BlockParts>{{}, {.residual = true}, {true, true, true}})
    for (LayerCase how : layer_cases())
      for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
        how.recompute = recompute;
        how.microbatches = 1;  // the test takes long
        check_layer(block_layer(has, how), how);
      }
}

// The last block's residual may be unused. It then receives no gradient.
TEST(Block, OneOfItsResultsMayBeUnused) {
  for (const Recompute recompute : {Recompute::none, Recompute::full}) {
    LayerCase how{.tp = 2, .sequence_parallel = true, .recompute = recompute};
    Layer layer = block_layer({.residual = true}, how);
    layer.outputs.resize(1);
    layer.forward = [whole = layer.forward](LayerRank& rank, const Sample& sample) -> std::vector<at::Tensor> {
      return {whole(rank, sample)[0]};
    };
    layer.reference = [whole = layer.reference](const LogicalWeights& weights,
                                                const Sample& sample) -> std::vector<at::Tensor> {
      return {whole(weights, sample)[0]};
    };
    check_layer(layer, how);
  }
}

// The block keeps only its input: 4 of 8 tokens, two tensors of 6 numbers. Its forward runs again, with all its events,
// before backward.
TEST(Block, FullRecomputeKeepsTheInputAndRunsForwardAgain) {
  const LayerCase how{.tp = 2, .sequence_parallel = true, .recompute = Recompute::full, .microbatches = 1, .uses = 1};
  const std::vector<std::string> events = check_layer(block_layer({.residual = true}, how), how).first_rank;
  std::vector<std::string> forward, again;
  const std::string kForward = "forward ", kRecompute = "recompute ";
  for (const std::string& event : events) {
    if (event.starts_with(kForward)) forward.push_back(event.substr(kForward.size()));
    if (event.starts_with(kRecompute) && event.find("stash") == std::string::npos)
      again.push_back(event.substr(kRecompute.size()));
  }
  ASSERT_FALSE(forward.empty());
  EXPECT_EQ(forward.back(), "stash shard 384");
  forward.pop_back();
  EXPECT_EQ(forward, again);
  EXPECT_EQ(std::ranges::count(events, "backward fetch shard 384"), 1);
}

}  // namespace
}  // namespace tessera::nn
