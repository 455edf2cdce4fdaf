#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tessera/ops/attention/attention.h"
#include "tests/ops/values.h"

namespace tessera::ops::test {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::string shown(double value) {
  return std::isnan(value) ? "NaN" : std::to_string(value);
}

// Two key/value heads. The first has two query heads.
struct Heads {
  std::vector<int> kv_of_q{0, 0, 1};
  std::int64_t kv_heads = 2, head_dim = 5;

  std::int64_t q_heads() const { return static_cast<std::int64_t>(kv_of_q.size()); }
  std::int64_t width() const { return q_heads() * head_dim; }
  AttentionShape shape(std::int64_t batch, std::int64_t seq_len, std::vector<std::int64_t> documents = {}) const {
    return {.batch = batch,
            .seq_len = seq_len,
            .kv_of_q = kv_of_q,
            .cu_seqlens = std::move(documents),
            .scale = 1 / std::sqrt(static_cast<double>(head_dim))};
  }
};

struct Inputs {
  at::Tensor q, k, v, dout;
};
Inputs random_inputs(std::int64_t tokens, const Heads& heads, const at::TensorOptions& type) {
  return {.q = random_tensor({tokens, heads.q_heads(), heads.head_dim}, 1, type),
          .k = random_tensor({tokens, heads.kv_heads, heads.head_dim}, 2, type),
          .v = random_tensor({tokens, heads.kv_heads, heads.head_dim}, 3, type),
          .dout = random_tensor({tokens, heads.width()}, 4, type)};
}

struct Results {
  at::Tensor out, dq, dk, dv;
};
Results attention(const Inputs& in, const AttentionShape& shape) {
  const Qkv qkv{.q = in.q, .k = in.k, .v = in.v};
  const Attention forward = attention_forward(qkv, shape);
  const Qkv gradient = attention_backward(in.dout, qkv, forward, shape);
  return {forward.out, gradient.q, gradient.k, gradient.v};
}

// The formula, with its softmax relative to the largest score, and its derivative as automatic differentiation computes
// it. Every product and sum is computed in fp64 over the tokens that a token attends to.
class Formula {
 public:
  Formula(const Inputs& in, const Heads& heads, const AttentionShape& shape)
      : heads_(heads), shape_(shape), q_(values_of(in.q)), k_(values_of(in.k)), v_(values_of(in.v)) {
    const Values gradient = values_of(in.dout);
    out.resize(q_.size()), dq.resize(q_.size()), dk.resize(k_.size()), dv.resize(v_.size());
    for (std::int64_t token = 0; token < in.q.size(0); ++token)
      for (std::int64_t head = 0; head < heads.q_heads(); ++head) add_row(token, head, gradient);
  }
  Values out, dq, dk, dv;

 private:
  std::int64_t first_visible(std::int64_t token) const {
    std::int64_t first = token / shape_.seq_len * shape_.seq_len;
    for (const std::int64_t start : shape_.cu_seqlens)
      if (start <= token) first = std::max(first, start);
    return first;
  }
  double inner(const Values& a, std::size_t i, const Values& b, std::size_t j) const {
    double sum = 0;
    for (std::size_t d = 0; d < static_cast<std::size_t>(heads_.head_dim); ++d) sum += a[i + d] * b[j + d];
    return sum;
  }
  std::vector<std::size_t> visible_keys(std::int64_t token, std::int64_t head) const {
    std::vector<std::size_t> keys;
    for (std::int64_t other = first_visible(token); other <= token; ++other)
      keys.push_back(static_cast<std::size_t>(
          (other * heads_.kv_heads + heads_.kv_of_q[static_cast<std::size_t>(head)]) * heads_.head_dim));
    return keys;
  }
  void add_row(std::int64_t token, std::int64_t head, const Values& gradient) {
    const auto size = static_cast<std::size_t>(heads_.head_dim);
    const std::size_t row = static_cast<std::size_t>(token * heads_.q_heads() + head) * size;
    const std::vector<std::size_t> keys = visible_keys(token, head);
    Values weights, of_weights;
    double most = -kInfinity, total = 0, mean = 0;
    for (const std::size_t key : keys) {
      weights.push_back(shape_.scale * inner(q_, row, k_, key));
      most = std::max(most, weights.back());
    }
    for (double& weight : weights) total += weight = std::exp(weight - most);
    for (std::size_t j = 0; j < keys.size(); ++j) {
      weights[j] /= total;
      of_weights.push_back(inner(gradient, row, v_, keys[j]));
      mean += weights[j] * of_weights[j];
    }
    for (std::size_t j = 0; j < keys.size(); ++j) {
      const double of_score = shape_.scale * weights[j] * (of_weights[j] - mean);
      for (std::size_t d = 0; d < size; ++d) {
        out[row + d] += weights[j] * v_[keys[j] + d];
        dq[row + d] += of_score * k_[keys[j] + d];
        dk[keys[j] + d] += of_score * q_[row + d];
        dv[keys[j] + d] += weights[j] * gradient[row + d];
      }
    }
  }

  const Heads& heads_;
  const AttentionShape& shape_;
  Values q_, k_, v_;
};

// The result has NaN at the same elements as the formula, the same infinities, and finite values near those of the
// formula.
void expect_like(const char* what, const at::Tensor& got, const Values& expected) {
  const Values values = values_of(got);
  const double tolerance = got.scalar_type() == at::kBFloat16 ? 0.05 : 1e-5;
  int wrong = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const bool same = std::isfinite(expected[i]) ? std::abs(values[i] - expected[i]) <= tolerance
                      : std::isnan(expected[i])  ? std::isnan(values[i])
                                                 : values[i] == expected[i];
    if (!same && ++wrong == 1)
      ADD_FAILURE() << what << ", element " << i << ": got " << shown(values[i]) << ", expected " << shown(expected[i]);
  }
}

void expect_formula(const Inputs& in, const Heads& heads, const AttentionShape& shape) {
  const Results got = attention(in, shape);
  const Formula expected(in, heads, shape);
  expect_like("out", got.out, expected.out);
  expect_like("dq", got.dq, expected.dq);
  expect_like("dk", got.dk, expected.dk);
  expect_like("dv", got.dv, expected.dv);
}

// Puts NaN and both infinities into one element of q, k, v and dout, one at a time, at the given tokens.
void expect_formula_for_each_fault(const AttentionShape& shape, const std::vector<std::int64_t>& tokens,
                                   const at::TensorOptions& type) {
  const Heads heads;
  for (const char* name : {"q", "k", "v", "dout"}) {
    for (const double value : {kNaN, kInfinity, -kInfinity}) {
      for (const std::int64_t token : tokens) {
        SCOPED_TRACE(testing::Message() << shown(value) << " in " << name << " of token " << token << " of "
                                        << shape.batch << " x " << shape.seq_len);
        Inputs in = random_inputs(shape.batch * shape.seq_len, heads, type);
        at::Tensor& faulty = name[0] == 'q' ? in.q : name[0] == 'k' ? in.k : name[0] == 'v' ? in.v : in.dout;
        faulty[token].view({-1})[1].fill_(value);
        expect_formula(in, heads, shape);
      }
    }
  }
}

// Tests only kinds on the CPU, because the kernels of a GPU compute the softmax differently.
class AttentionNaN : public KindTest {};
std::vector<Kind> cpu_kinds() {
  std::vector<Kind> kinds = every_kind();
  std::erase_if(kinds, [](const Kind& kind) { return kind.device != at::kCPU; });
  return kinds;
}
INSTANTIATE_TEST_SUITE_P(Kinds, AttentionNaN, testing::ValuesIn(cpu_kinds()), name_of_kind);

TEST_P(AttentionNaN, PropagatesAsInTheFormulaAtEveryLength) {
  for (const std::int64_t length : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 33, 70}) {
    std::vector<std::int64_t> tokens{0, length / 2, length - 1};
    tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
    expect_formula_for_each_fault(Heads().shape(1, length), tokens, type());
  }
}

TEST_P(AttentionNaN, StaysInItsSequence) {
  expect_formula_for_each_fault(Heads().shape(3, 4), {4, 6}, type());
}

TEST_P(AttentionNaN, StaysInItsDocument) {
  expect_formula_for_each_fault(Heads().shape(2, 12, {0, 1, 4, 12, 20, 24}), {0, 2, 5, 13, 23}, type());
}

TEST_P(AttentionNaN, InEveryInputMakesEveryResultNaN) {
  const Heads heads;
  for (const std::int64_t length : {1, 7, 15, 16, 40}) {
    Inputs in = random_inputs(length, heads, type());
    for (at::Tensor* tensor : {&in.q, &in.k, &in.v, &in.dout}) tensor->fill_(kNaN);
    expect_formula(in, heads, heads.shape(1, length));
  }
}

TEST_P(AttentionNaN, LeavesTheBitsOfOtherHeads) {
  const Heads heads;
  const AttentionShape shape = heads.shape(2, 9);
  const Inputs clean = random_inputs(18, heads, type());
  Inputs in = random_inputs(18, heads, type());
  in.q[3][1][0].fill_(kNaN);  // the second query head of the first sequence
  const Results expected = attention(clean, shape), got = attention(in, shape);
  const auto of_head = [&](const at::Tensor& tensor, std::int64_t head) {
    return tensor.view({18, heads.q_heads(), heads.head_dim}).select(1, head);
  };
  for (const std::int64_t head : {0, 2}) {
    EXPECT_TRUE(same_bits(of_head(got.out, head), of_head(expected.out, head)));
    EXPECT_TRUE(same_bits(of_head(got.dq, head), of_head(expected.dq, head)));
  }
  EXPECT_TRUE(same_bits(got.dk.select(1, 1), expected.dk.select(1, 1)));
  EXPECT_TRUE(same_bits(got.dv.select(1, 1), expected.dv.select(1, 1)));
  const auto expect_same_second_sequence = [](const at::Tensor& left, const at::Tensor& right) {
    EXPECT_TRUE(same_bits(left.narrow(0, 9, 9), right.narrow(0, 9, 9)));
  };
  expect_same_second_sequence(got.out, expected.out);
  expect_same_second_sequence(got.dq, expected.dq);
  expect_same_second_sequence(got.dk, expected.dk);
  expect_same_second_sequence(got.dv, expected.dv);
}

// The inputs are finite and their products exceed the largest number.
TEST_P(AttentionNaN, FromInfiniteScoresIsKept) {
  const Heads heads;
  const double large = GetParam().type == at::kDouble ? 1e200 : 1e25;
  for (const std::int64_t length : {1, 2, 7, 8, 15, 16, 17, 20, 40}) {
    for (const double sign : {1.0, -1.0}) {
      SCOPED_TRACE(testing::Message() << "length " << length << ", sign " << sign);
      Inputs in = random_inputs(length, heads, type());
      in.q.fill_(large);
      in.k.fill_(sign * large);
      const Results got = attention(in, heads.shape(1, length));
      for (const at::Tensor& tensor : {got.out, got.dq, got.dk, got.dv})
        for (const double value : values_of(tensor)) ASSERT_TRUE(std::isnan(value));
    }
  }
}

TEST(AttentionOfLargeScores, HasTheBitsOfTheKernel) {
  const AttentionShape shape{.batch = 1, .seq_len = 12, .kv_of_q = {0}, .cu_seqlens = {}, .scale = 0.5};
  Inputs in{.q = random_tensor({12, 1, 4}, 1, at::kFloat, 1e19),
            .k = random_tensor({12, 1, 4}, 2, at::kFloat, 2e18),
            .v = random_tensor({12, 1, 4}, 3, at::kFloat),
            .dout = {}};
  in.q[0][0][0].fill_(3e19);  // the bound of the scores is within a factor of 2 of an overflow
  const auto as_heads = [](const at::Tensor& tensor) { return tensor.view({1, 12, 1, 4}).transpose(1, 2); };
  const auto expected = std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(
      as_heads(in.q), as_heads(in.k), as_heads(in.v), 0.0, /*is_causal=*/true, {}, shape.scale));
  const at::Tensor out = attention_forward({in.q, in.k, in.v}, shape).out;
  EXPECT_TRUE(same_bits(out, expected.transpose(1, 2).contiguous().view({12, 4})));
  for (const double value : values_of(out)) EXPECT_TRUE(std::isfinite(value));
}

}  // namespace
}  // namespace tessera::ops::test
