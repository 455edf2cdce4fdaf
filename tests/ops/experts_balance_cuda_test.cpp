// Tests the routing of dots1 on CUDA: sigmoid scores, groups of experts, biases and their update, and the capacity of
// experts. The results have the bits of the CPU.
#include <ATen/ops/isnan.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "tessera/base/cuda_only.h"
#include "tessera/base/error.h"
#include "tessera/ops/experts/capacity.h"
#include "tessera/ops/router/bias_update.h"
#include "tessera/ops/router/router.h"
#include "tessera/ops/tensor.h"
#include "tests/ops/experts_values.h"

namespace tessera::ops::test {
namespace {

class OnCudaBalance : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_cuda()) GTEST_SKIP() << "no CUDA device";
  }
};

at::Tensor on_gpu(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.to(at::kCUDA) : tensor;
}
RoutingGradients on_gpu(const RoutingGradients& gradients) {
  return {.weights = on_gpu(gradients.weights),
          .probabilities = on_gpu(gradients.probabilities),
          .logsumexp_squares = on_gpu(gradients.logsumexp_squares)};
}

// ---- routers

struct BalanceCase {
  std::int64_t tokens, experts, k, groups, chosen_groups;
};
std::ostream& operator<<(std::ostream& out, const BalanceCase& it) {
  return out << it.tokens << " tokens, " << it.k << " of " << it.experts << " experts in " << it.chosen_groups << " of "
             << it.groups << " groups";
}
std::vector<BalanceCase> balance_cases() {
  return {{.tokens = 41, .experts = 12, .k = 3, .groups = 1, .chosen_groups = 1},
          {.tokens = 41, .experts = 12, .k = 3, .groups = 4, .chosen_groups = 2},
          {.tokens = 41, .experts = 12, .k = 12, .groups = 3, .chosen_groups = 3},
          {.tokens = 300, .experts = 256, .k = 8, .groups = 8, .chosen_groups = 4},
          {.tokens = 5, .experts = 1022, .k = 5, .groups = 511, .chosen_groups = 40},
          {.tokens = 3, .experts = 1023, .k = 8, .groups = 1, .chosen_groups = 1},
          {.tokens = 1, .experts = 1, .k = 1, .groups = 1, .chosen_groups = 1},
          {.tokens = 0, .experts = 8, .k = 2, .groups = 2, .chosen_groups = 1}};
}
RouterOptions rule_of(const BalanceCase& it, RouterScore score, bool normalizes) {
  return {.k = it.k,
          .normalizes = normalizes,
          .score = score,
          .groups = it.groups,
          .chosen_groups = it.chosen_groups,
          .scale = 2.5};
}
// Returns logits of which many are equal.
at::Tensor logits_of(const BalanceCase& it) {
  at::Tensor logits = random_tensor({it.tokens, it.experts}, 31, at::kFloat, 6.0);
  logits.narrow(0, 0, it.tokens / 2).round_();
  return logits;
}

TEST_F(OnCudaBalance, ChoicesAndWeightsAreTheSame) {
  for (const BalanceCase& it : balance_cases())
    for (const RouterScore score : {RouterScore::sigmoid, RouterScore::softmax})
      for (const bool normalizes : {false, true})
        for (const bool has_bias : {false, true}) {
          SCOPED_TRACE(testing::Message() << it << (has_bias ? ", with a bias" : ""));
          const RouterOptions options = rule_of(it, score, normalizes);
          const at::Tensor logits = logits_of(it);
          at::Tensor bias;
          if (has_bias) bias = random_tensor({it.experts}, 32, at::kFloat, 0.5).mul_(16).round_().div_(16);
          const Routing host = route(logits, options, bias), device = route(on_gpu(logits), options, on_gpu(bias));
          EXPECT_TRUE(same_bits(device.experts, host.experts));
          EXPECT_TRUE(same_bits(device.probabilities, host.probabilities));
          EXPECT_TRUE(same_bits(device.weights, host.weights));
          if (score == RouterScore::sigmoid) {
            EXPECT_TRUE(same_bits(device.logsumexp, host.logsumexp));
          }
        }
}

TEST_F(OnCudaBalance, GradientsOfSigmoidScoresAreTheSame) {
  for (const BalanceCase& it : balance_cases())
    for (const bool normalizes : {false, true}) {
      SCOPED_TRACE(it);
      const RouterOptions options = rule_of(it, RouterScore::sigmoid, normalizes);
      const at::Tensor logits = logits_of(it);
      const Routing host = route(logits, options), device = route(on_gpu(logits), options);
      at::Tensor counted = make({it.tokens}, at::kBool).fill_(true);
      if (it.tokens > 2) counted[2].fill_(false);
      RoutingGradients gradients;
      for (int given = 0; given < 2; ++given) {
        gradients.weights = random_tensor({it.tokens, it.k}, 33, at::kFloat);
        if (given > 0) gradients.probabilities = random_tensor({it.experts}, 34, at::kFloat);
        EXPECT_TRUE(same_bits(route_backward(device, options, on_gpu(gradients), on_gpu(counted)),
                              route_backward(host, options, gradients, counted)));
      }
    }
}

TEST_F(OnCudaBalance, ScoresAndBiasesThatAreNotFiniteHaveTheSameChoices) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN(), kLarge = std::numeric_limits<float>::infinity();
  for (const BalanceCase& it : balance_cases()) {
    if (it.tokens < 4) continue;
    SCOPED_TRACE(it);
    at::Tensor logits = random_tensor({it.tokens, it.experts}, 35, at::kFloat, 3.0);
    logits[0].fill_(kNaN);
    logits[1].narrow(0, 0, it.experts / 2).fill_(kNaN);
    logits[2][it.experts - 1].fill_(kNaN);
    logits[3].fill_(-kLarge);
    at::Tensor bias = random_tensor({it.experts}, 36, at::kFloat, 0.5);
    for (const float value : {0.0f, kNaN, -kLarge, kLarge}) {
      bias[it.experts / 3].fill_(value);
      const RouterOptions options = rule_of(it, RouterScore::sigmoid, true);
      const Routing host = route(logits, options, bias), device = route(on_gpu(logits), options, on_gpu(bias));
      EXPECT_TRUE(same_bits(device.experts, host.experts));
      const at::Tensor weights = device.weights.cpu();
      EXPECT_TRUE(same_bits(at::isnan(weights), at::isnan(host.weights)));
      EXPECT_TRUE(same_bits(weights.nan_to_num(), host.weights.nan_to_num()));
      for (const double weight : values_of(weights.narrow(0, 0, 3))) EXPECT_TRUE(std::isnan(weight));
    }
  }
}

// ---- capacity

TEST_F(OnCudaBalance, DroppedChoicesAreTheSame) {
  std::vector<ExpertsCase> cases = experts_cases();
  cases.push_back({.length = 300, .blocks = 3, .k = 8, .local = {.first = 16, .count = 100, .all = 128}});
  cases.push_back({.length = 2500, .blocks = 2, .k = 1, .local = {.first = 0, .count = 2, .all = 2}});
  for (const at::ScalarType type : {at::kFloat, at::kDouble})
    for (const ExpertsCase& it : cases)
      for (const bool is_coarse : {false, true}) {
        const at::Tensor choices = random_choices(it.tokens(), it.k, it.local.all, 41);
        at::Tensor weights = random_tensor({it.tokens(), it.k}, 42, type);
        if (is_coarse) weights.mul_(4).round_().div_(4);  // so that many are equal, and some are -0
        if (it.tokens() > 3) weights.narrow(0, 1, 2).fill_(std::numeric_limits<double>::quiet_NaN());
        for (const std::int64_t capacity : {1, 2, 7, 100, 700, 5000}) {
          SCOPED_TRACE(testing::Message()
                       << it << ", capacity " << capacity << ", " << type << (is_coarse ? ", coarse weights" : ""));
          EXPECT_TRUE(same_bits(within_capacity(on_gpu(choices), on_gpu(weights), it.local, it.blocks, capacity),
                                within_capacity(choices, weights, it.local, it.blocks, capacity)));
        }
      }
}

TEST_F(OnCudaBalance, AnExpertThatEveryTokenChoosesKeepsTheFirstTokens) {
  const at::Tensor choices = make({3000, 1}, at::kInt).fill_(0), weights = make({3000, 1}, at::kFloat).fill_(1);
  const at::Tensor kept =
      within_capacity(on_gpu(choices), on_gpu(weights), {.first = 0, .count = 1, .all = 4}, 1, 1100).cpu();
  at::Tensor expected = choices.clone();
  expected.narrow(0, 1100, 1900).fill_(-1);
  EXPECT_TRUE(same_bits(kept, expected));
}

// ---- biases

at::Tensor clip_on_gpu(bool applies) {
  const Clip clip{.applies = applies ? 1 : 0};
  at::Tensor bytes = make({sizeof(Clip)}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), &clip, sizeof clip);
  return on_gpu(bytes);
}

// More parts than one launch has. Part i has the last experts of router i.
TEST_F(OnCudaBalance, UpdatedBiasesAreTheSame) {
  constexpr std::int64_t kRouters = 70, kExperts = 71;
  for (const at::ScalarType type : {at::kFloat, at::kDouble})
    for (const bool applies : {false, true}) {
      SCOPED_TRACE(testing::Message() << type << (applies ? "" : ", no update"));
      const at::Tensor counts = random_tensor({kRouters, kExperts}, 51, at::kDouble, 4.0).abs().to(at::kLong),
                       counts_on_gpu = on_gpu(counts);
      at::Tensor host = random_tensor({kRouters, kExperts}, 52, type), device = on_gpu(host);
      const auto parts_of = [&](at::Tensor& biases, const at::Tensor& of_experts) {
        std::vector<RouterBiasPart> parts;
        for (std::int64_t i = 0; i < kRouters; ++i)
          parts.push_back({.bias = static_cast<std::byte*>(biases.mutable_data_ptr()) +
                                   (i * kExperts + i) * static_cast<std::int64_t>(biases.element_size()),
                           .first = i,
                           .count = kExperts - i,
                           .counts = of_experts.const_data_ptr<std::int64_t>() + i * kExperts});
        return parts;
      };
      const RouterBiasRule rule{
          .type = type == at::kFloat ? quant::DType::fp32 : quant::DType::fp64, .experts = kExperts, .rate = 0.001};
      const at::Tensor clip = clip_on_gpu(applies);
      base::cuda_only<cuda::update_router_biases>(parts_of(device, counts_on_gpu), rule,
                                                  static_cast<const Clip*>(clip.const_data_ptr()), stream_of(device));
      const at::Tensor before = host.clone();
      if (applies) update_router_biases(parts_of(host, counts), rule);
      EXPECT_TRUE(same_bits(device, host));
      EXPECT_EQ(same_bits(host, before), !applies);
    }
}

}  // namespace
}  // namespace tessera::ops::test
