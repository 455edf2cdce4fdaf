// Tests dropout of the residual stream on meshes. The layers are compared with their formulas, which use the logical
// masks.
#include "tessera/nn/layers/dropout.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tessera/nn/layers/block.h"
#include "tests/nn/head_cut.h"
#include "tests/nn/layer_check.h"
#include "tests/nn/plain_formulas.h"

namespace tessera::nn {
namespace {

constexpr std::int64_t kDroppedWidth = 6, kDroppedInner = 5, kDroppedStep = 3,
                       kDroppedFirst = 40;  // kDroppedFirst: logical token of the microbatch
const DropoutOptions kDropped{.hidden = 0.3, .embedding = 0.6};
constexpr std::uint64_t kDropoutSeed = 11;

// The logical factors of a site, from the definition in ops/dropout.h.
at::Tensor logical_factors(std::uint32_t site, std::int64_t tokens, std::int64_t columns) {
  const std::uint64_t key = kDropoutSeed ^ 0x64726F706F757431u;
  const double least = std::floor((site == 0 ? kDropped.embedding : kDropped.hidden) * 0x1p32);
  at::Tensor factors = at::empty({tokens, columns}, at::kDouble);
  for (std::int64_t token = 0; token < tokens; ++token)
    for (std::int64_t column = 0; column < columns; ++column) {
      const base::PhiloxCounter words =
          base::philox({static_cast<std::uint32_t>(column / 4), static_cast<std::uint32_t>(kDroppedFirst + token),
                        kDroppedStep, site},
                       {static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)});
      const bool drops = words[static_cast<std::size_t>(column % 4)] < least;
      factors.data_ptr<double>()[token * columns + column] = drops ? 0 : 1 / (1 - least / 0x1p32);
    }
  return factors;
}

// Sets the state of a microbatch as the trainer and the model do.
void begin_dropout(Context& context, std::int64_t tokens) {
  static constexpr std::int64_t step = kDroppedStep;
  context.random = {
      .seed = kDropoutSeed, .step = &step, .first_own_token = kDroppedFirst + context.own_tokens(tokens).begin};
}

Norm dropping(Norm norm, std::uint32_t site) {
  norm.dropout = input_dropout(kDropped, site);
  return norm;
}

Layer norm_layer_with_dropout(bool has_residual, std::uint32_t site, const LayerCase& how) {
  Layer layer;
  layer.weights.push_back(whole_vector("norm", kDroppedWidth, how.tp, how.sequence_parallel && how.tp > 1));
  layer.inputs.push_back({kDroppedWidth, own_tokens()});
  if (has_residual) layer.inputs.push_back({kDroppedWidth, own_tokens()});
  layer.outputs.push_back(own_tokens());
  layer.forward = [=, tokens = layer.tokens](LayerRank& rank, const Sample& sample) -> std::vector<at::Tensor> {
    begin_dropout(rank.context, tokens);
    return {rms_norm(rank.context, rank.keep(dropping(rank.norm("norm"), site)), sample.inputs[0],
                     has_residual ? sample.inputs[1] : at::Tensor())};
  };
  layer.reference = [=, tokens = layer.tokens](const LogicalWeights& weights,
                                               const Sample& sample) -> std::vector<at::Tensor> {
    const at::Tensor x = sample.inputs[0] * logical_factors(site, tokens, kDroppedWidth);
    return {plain_norm(has_residual ? x + sample.inputs[1] : x, weights.at("norm"))};
  };
  return layer;
}

TEST(InputDropout, MasksAreTheLogicalOnesOnEveryMesh) {
  for (LayerCase how : layer_cases()) {
    check_layer(norm_layer_with_dropout(false, 0, how), how);
    check_layer(norm_layer_with_dropout(true, 5, how), how);
    how.frozen = "norm";
    check_layer(norm_layer_with_dropout(true, 5, how), how);
  }
}

TEST(InputDropout, MasksFollowAnUnequalSplitOfTheTokens) {
  LayerCase how{.tp = 3, .sequence_parallel = true, .split = {.weights = {2, 0, 5}}};
  check_layer(norm_layer_with_dropout(true, 5, how), how);
}

// The block of layer 1, and the norm after it: sites 2 (the feed-forward part of layer 0), 3 and 4.
Layer block_with_dropout(const LayerCase& how) {
  const HeadCut cut = head_cut(how.tp);
  const bool partial = how.sequence_parallel && how.tp > 1;
  const RankRanges inner = uneven_parts(kDroppedInner, how.tp);
  Layer layer{.weights = {whole_vector("attention_norm", kDroppedWidth, how.tp, partial),
                          by_rows("qkv", HeadCut::kWidth, kDroppedWidth, cut.qkv_columns),
                          by_columns("output", kDroppedWidth, HeadCut::kQ * HeadCut::kDim, cut.q_columns),
                          whole_vector("mlp_norm", kDroppedWidth, how.tp, partial),
                          by_rows("gate_up", 2 * kDroppedInner, kDroppedWidth, stacked_parts(inner, kDroppedInner, 2)),
                          by_columns("down", kDroppedWidth, kDroppedInner, inner),
                          whole_vector("norm", kDroppedWidth, how.tp, partial)},
              .inputs = {{kDroppedWidth, own_tokens()}, {kDroppedWidth, own_tokens()}},
              .outputs = {own_tokens()},
              .tokens = kAttentionTokens};
  layer.forward = [=](LayerRank& rank, const Sample& sample) -> std::vector<at::Tensor> {
    begin_dropout(rank.context, kAttentionTokens);
    Block block;
    block.qkv = {.weight = rank.weight("qkv"), .norm = dropping(rank.norm("attention_norm"), 2), .bias = {}};
    block.heads = cut.heads[static_cast<std::size_t>(rank.context.tp_rank())];
    block.attention_output = {.weight = rank.weight("output")};
    block.feed_forward.gate_up = {
        .weight = rank.weight("gate_up"), .norm = dropping(rank.norm("mlp_norm"), 3), .bias = {}};
    block.feed_forward.down = {.weight = rank.weight("down")};
    block.recompute = how.recompute;
    const ops::RopeTable rope =
        ops::make_rope_table(kAttentionTokens, HeadCut::kDim, kTheta, {}, sample.inputs[0].scalar_type());
    const Stream out = block_forward(rank.context, rank.keep(std::move(block)), {sample.inputs[0], sample.inputs[1]},
                                     token_layout(Documents::sequences), rope)
                           .stream;
    return {rms_norm(rank.context, rank.keep(dropping(rank.norm("norm"), 4)), out.h, out.residual)};
  };
  layer.reference = [=](const LogicalWeights& weights, const Sample& sample) -> std::vector<at::Tensor> {
    const auto dropped = [](const at::Tensor& x, std::uint32_t site) {
      return x * logical_factors(site, kAttentionTokens, kDroppedWidth);
    };
    const at::Tensor stream = dropped(sample.inputs[0], 2) + sample.inputs[1];
    const at::Tensor qkv = plain_linear(plain_norm(stream, weights.at("attention_norm")), weights.at("qkv"));
    const at::Tensor attended = plain_attention(qkv, {}, {}, Documents::sequences);
    const at::Tensor sum = stream + dropped(plain_linear(attended, weights.at("output")), 3);
    const at::Tensor fed =
        plain_feed_forward(plain_norm(sum, weights.at("mlp_norm")), weights.at("gate_up"), weights.at("down"));
    return {plain_norm(sum + dropped(fed, 4), weights.at("norm"))};
  };
  return layer;
}

TEST(InputDropout, ABlockMatchesItsFormulasUnderEveryPolicy) {
  constexpr Recompute policies[] = {Recompute::full, Recompute::selective, Recompute::none};
  std::size_t turn = 0;
  for (LayerCase how : layer_cases()) {
    how.microbatches = 1;  // the test takes long
    how.uses = 1;
    how.recompute = policies[turn++ % 3];
    check_layer(block_with_dropout(how), how);
  }
}

TEST(InputDropout, NothingIsDroppedWithoutAStep) {
  EXPECT_FALSE(dropout_of({}, input_dropout(kDropped, 1)).drops());
  const std::int64_t step = 1;
  EXPECT_TRUE(dropout_of({.step = &step}, input_dropout(kDropped, 1)).drops());
  EXPECT_FALSE(dropout_of({.step = &step}, input_dropout({.embedding = 0.5}, 1)).drops());
  EXPECT_TRUE(dropout_of({.step = &step}, input_dropout({.embedding = 0.5}, 0)).drops());
}

}  // namespace
}  // namespace tessera::nn
