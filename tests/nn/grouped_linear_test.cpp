// Tests the products of a stack of matrices, whose rows a router of the caller has selected.
#include "tessera/nn/grouped_linear.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tests/nn/layer_check.h"

namespace tessera::nn {
namespace {

constexpr std::int64_t kMatrices = 4, kIn = 6, kOut = 5, kChoices = 2;

// Token t chooses two of the first three matrices. The last matrix has no rows.
at::Tensor choices_of(std::int64_t tokens, int sample) {
  const at::Tensor first = at::remainder(at::arange(tokens, at::kInt) + sample, 3);
  return at::stack({first, at::remainder(first + 1, 3)}, 1).to(at::kInt);
}

Layer grouped_layer() {
  const layout::Range all{.begin = 0, .end = kMatrices * kOut};
  LayerWeight weight = by_rows("w", all.end, kIn, {{all}});
  weight.matrices = kMatrices;
  Layer layer{.weights = {weight}, .inputs = {{kIn, own_tokens()}}, .outputs = {own_tokens()}};
  layer.forward = [](LayerRank& rank, const Sample& sample) -> std::vector<at::Tensor> {
    const at::Tensor& x = sample.inputs[0];
    const auto& linear = rank.keep(GroupedLinear{.weight = rank.weight("w")});
    const ops::Selection selection =
        ops::select_rows(choices_of(x.size(0), sample.number), {0, kMatrices, kMatrices}, /*blocks=*/1);
    const at::Tensor y = grouped_linear(rank.pass, linear, x.index_select(0, selection.tokens), selection);
    return {at::zeros({x.size(0), kOut}, x.options()).index_add(0, selection.tokens, y)};
  };
  layer.reference = [](const LogicalWeights& weights, const Sample& sample) -> std::vector<at::Tensor> {
    const at::Tensor& x = sample.inputs[0];
    const at::Tensor of_all = at::matmul(x, weights.at("w").t()).view({x.size(0), kMatrices, kOut});
    const at::Tensor choices = choices_of(x.size(0), sample.number).to(at::kLong);
    const at::Tensor index = choices.unsqueeze(2).expand({x.size(0), kChoices, kOut});
    return {of_all.gather(1, index).sum(1)};
  };
  return layer;
}

TEST(GroupedLinear, MultipliesEachRowByItsMatrix) {
  for (const LayerCase& how : layer_cases()) {
    if (how.tp > 1) continue;
    const LayerEvents events = check_layer(grouped_layer(), how);
    EXPECT_THAT(events.first_rank, testing::Contains("backward consume w"));
    EXPECT_THAT(events.first_rank, testing::Contains("backward produce w"));
  }
}

TEST(GroupedLinear, ReadsAFrozenStackAndProducesNoGradient) {
  const LayerEvents events = check_layer(grouped_layer(), {.gtp = 2, .frozen = "w"});
  EXPECT_THAT(events.first_rank, testing::Not(testing::Contains("backward produce w")));
}

TEST(GroupedLinear, RefusesAWeightThatIsNoStack) {
  Layer layer = grouped_layer();
  layer.weights[0].matrices = 1;
  EXPECT_THAT([&] { check_layer(layer, {}); },
              testing::ThrowsMessage<Error>(testing::HasSubstr("parameter 'w' has 2 dims, expected 3 dims")));
}

}  // namespace
}  // namespace tessera::nn
