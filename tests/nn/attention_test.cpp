// Tests attention over a rank's heads, with and without head norms, against softmax(q k^T) v of the logical heads.
#include "tessera/nn/layers/attention.h"

#include <gtest/gtest.h>

#include "tests/nn/head_cut.h"
#include "tests/nn/layer_check.h"

namespace tessera::nn {
namespace {

std::vector<at::Tensor> attend(LayerRank& rank, const Sample& sample, const HeadCut& cut, bool has_norms,
                               Documents documents) {
  struct Call {
    AttentionHeads heads;
    std::optional<HeadNorms> norms;
  };
  const Call& call = rank.keep(
      Call{.heads = cut.heads[static_cast<std::size_t>(rank.context.tp_rank())],
           .norms = has_norms ? std::optional(HeadNorms{rank.norm("q_norm"), rank.norm("k_norm")}) : std::nullopt});
  const ops::RopeTable rope =
      ops::make_rope_table(kAttentionTokens, HeadCut::kDim, kTheta, {}, sample.inputs[0].scalar_type());
  return {attention(rank.pass, sample.inputs[0], call.heads, call.norms, token_layout(documents), rope)};
}

Layer attention_layer(bool has_norms, Documents documents, const LayerCase& how) {
  const HeadCut cut = head_cut(how.tp);
  Layer layer{.tokens = kAttentionTokens};
  if (has_norms)
    for (const char* name : {"q_norm", "k_norm"})
      layer.weights.push_back(whole_vector(name, HeadCut::kDim, how.tp, /*partial_gradient=*/true));
  layer.inputs.push_back({HeadCut::kWidth, columns_of(cut.qkv_columns)});
  layer.outputs.push_back(columns_of(cut.q_columns));
  layer.forward = [=](LayerRank& rank, const Sample& sample) {
    return attend(rank, sample, cut, has_norms, documents);
  };
  layer.reference = [=](const LogicalWeights& weights, const Sample& sample) -> std::vector<at::Tensor> {
    const at::Tensor q_norm = has_norms ? weights.at("q_norm") : at::Tensor();
    return {plain_attention(sample.inputs[0], q_norm, has_norms ? weights.at("k_norm") : at::Tensor(), documents)};
  };
  return layer;
}

TEST(Attention, MatchesTheLogicalHeads) {
  for (const bool has_norms : {false, true})
    for (const Documents documents : {Documents::sequences, Documents::packed})
      for (LayerCase how : layer_cases())
        for (const Recompute recompute : {Recompute::none, Recompute::selective}) {
          how.recompute = recompute;
          check_layer(attention_layer(has_norms, documents, how), how);
        }
}

TEST(Attention, FrozenHeadNormsHaveNoGradient) {
  for (LayerCase how : layer_cases())
    for (const std::string frozen : {"q_norm", "k_norm"}) {
      how.frozen = frozen;
      check_layer(attention_layer(true, Documents::packed, how), how);
    }
}

// In fp32, sums of 8 tokens and 4 elements have errors of a few 2^-24 each.
TEST(Attention, InFp32IsWithinRounding) {
  for (LayerCase how : layer_cases()) {
    how.type = quant::DType::fp32;
    how.tolerance = 1e-5;
    check_layer(attention_layer(true, Documents::sequences, how), how);
  }
}

// 8 tokens, 8 bytes per number.
TEST(Attention, KeepsTheTensorsOfItsPolicy) {
  using Events = std::vector<std::string>;
  LayerCase how{.microbatches = 1, .uses = 1};
  const auto events = [&](bool has_norms) {
    return check_layer(attention_layer(has_norms, Documents::packed, how), how).first_rank;
  };
  const std::int64_t q = 8 * 6 * 4 * 8, kv = 8 * 3 * 4 * 8, statistics = 8 * (6 + 3) * 8, softmax = 8 * 6 * 8;
  const auto stashed = [](std::int64_t bytes) { return "forward stash keep " + std::to_string(bytes); };
  const auto fetched = [](std::int64_t bytes) { return "backward fetch keep " + std::to_string(bytes); };
  const std::int64_t plain = q + 2 * kv + softmax, normed = plain + q + kv + statistics,
                     again = q + 2 * kv + softmax + statistics;
  EXPECT_EQ(events(false), (Events{stashed(plain), fetched(plain)}));
  const auto norms = [](const std::string& pass, const Events& inner) {
    Events all{pass + " consume q_norm", pass + " consume k_norm"};
    all.insert(all.end(), inner.begin(), inner.end());
    all.insert(all.end(), {pass + " release k_norm", pass + " release q_norm"});
    return all;
  };
  Events expected = norms("forward", {});
  expected.insert(expected.end(), {stashed(normed), fetched(normed)});
  const Events recomputed = norms("recompute", {});
  const Events backward = norms("backward", {"backward produce q_norm", "backward produce k_norm"});
  Events none = expected;
  none.insert(none.end(), backward.begin(), backward.end());
  EXPECT_EQ(events(true), none);
  how.recompute = Recompute::selective;
  EXPECT_EQ(events(false), (Events{stashed(plain), fetched(plain)}));
  Events selective = expected;
  selective[4] = stashed(again), selective[5] = fetched(again);
  selective.insert(selective.end(), recomputed.begin(), recomputed.end());
  selective.insert(selective.end(), backward.begin(), backward.end());
  EXPECT_EQ(events(true), selective);
}

}  // namespace
}  // namespace tessera::nn
