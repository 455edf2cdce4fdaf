#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/ops/attention/attention.h"
#include "tests/ops/values.h"

namespace tessera::ops::test {
namespace {

struct Case {
  std::int64_t batch = 1, seq_len = 1, kv_heads = 1, head_dim = 2;
  std::vector<int> kv_of_q;
  std::vector<std::int64_t> cu_seqlens;

  std::int64_t q_heads() const { return static_cast<std::int64_t>(kv_of_q.size()); }
  std::int64_t tokens() const { return batch * seq_len; }
  AttentionShape shape() const {
    return {.batch = batch,
            .seq_len = seq_len,
            .kv_of_q = kv_of_q,
            .cu_seqlens = cu_seqlens,
            .scale = 1 / std::sqrt(static_cast<double>(head_dim))};
  }
  Qkv inputs(const at::TensorOptions& type) const {
    return {.q = random_tensor({tokens(), q_heads(), head_dim}, 1, type),
            .k = random_tensor({tokens(), kv_heads, head_dim}, 2, type),
            .v = random_tensor({tokens(), kv_heads, head_dim}, 3, type)};
  }
  // first token that `token` may attend to
  std::int64_t document_start(std::int64_t token) const {
    std::int64_t start = token / seq_len * seq_len;
    for (const std::int64_t candidate : cu_seqlens)
      if (candidate <= token) start = std::max(start, candidate);
    return start;
  }
};

// Values and, for each value, the sum of the magnitudes of its terms.
struct Reference {
  Values out, dq, dk, dv;
  Values out_scale, dq_scale, dk_scale, dv_scale;
};
struct Row {  // the weights of one query over the tokens to which it attends
  std::int64_t first;
  Values weight;
};
class Evaluation {
 public:
  Evaluation(const Case& c, const Qkv& in, const at::Tensor& dout)
      : case_(c), q_(values_of(in.q)), k_(values_of(in.k)), v_(values_of(in.v)), dout_(values_of(dout)) {
    for (Values* query : {&r_.out, &r_.dq, &r_.out_scale, &r_.dq_scale}) query->resize(q_.size());
    for (Values* key : {&r_.dk, &r_.dv, &r_.dk_scale, &r_.dv_scale}) key->resize(k_.size());
    for (std::int64_t token = 0; token < c.tokens(); ++token)
      for (std::int64_t head = 0; head < c.q_heads(); ++head) query(token, head);
  }
  const Reference& result() const { return r_; }

 private:
  std::size_t q_at(std::int64_t token, std::int64_t head) const {
    return static_cast<std::size_t>((token * case_.q_heads() + head) * case_.head_dim);
  }
  std::size_t k_at(std::int64_t token, std::int64_t head) const {
    const int stored = case_.kv_of_q[static_cast<std::size_t>(head)];
    return static_cast<std::size_t>((token * case_.kv_heads + stored) * case_.head_dim);
  }
  double inner(const Values& a, std::size_t i, const Values& b, std::size_t j, bool magnitude = false) const {
    double sum = 0;
    for (std::size_t d = 0; d < static_cast<std::size_t>(case_.head_dim); ++d)
      sum += magnitude ? std::abs(a[i + d] * b[j + d]) : a[i + d] * b[j + d];
    return sum;
  }
  Row weights(std::int64_t token, std::int64_t head) const {
    Row row{.first = case_.document_start(token), .weight = {}};
    double total = 0;
    for (std::int64_t other = row.first; other <= token; ++other) {
      row.weight.push_back(std::exp(case_.shape().scale * inner(q_, q_at(token, head), k_, k_at(other, head))));
      total += row.weight.back();
    }
    for (double& weight : row.weight) weight /= total;
    return row;
  }
  void query(std::int64_t token, std::int64_t head) {
    const Row row = weights(token, head);
    const std::size_t at = q_at(token, head), size = static_cast<std::size_t>(case_.head_dim);
    for (std::size_t j = 0; j < row.weight.size(); ++j) {
      const std::size_t key = k_at(row.first + static_cast<std::int64_t>(j), head);
      for (std::size_t d = 0; d < size; ++d) {
        r_.out[at + d] += row.weight[j] * v_[key + d];
        r_.out_scale[at + d] += row.weight[j] * std::abs(v_[key + d]);
        r_.dv[key + d] += row.weight[j] * dout_[at + d];
        r_.dv_scale[key + d] += row.weight[j] * std::abs(dout_[at + d]);
      }
    }
    const double delta = inner(dout_, at, r_.out, at), delta_scale = inner(dout_, at, r_.out_scale, at, true);
    for (std::size_t j = 0; j < row.weight.size(); ++j) {
      const std::size_t key = k_at(row.first + static_cast<std::int64_t>(j), head);
      const double scale = case_.shape().scale * row.weight[j];
      const double ds = scale * (inner(dout_, at, v_, key) - delta);
      const double ds_scale = scale * (inner(dout_, at, v_, key, true) + delta_scale);
      for (std::size_t d = 0; d < size; ++d) {
        r_.dq[at + d] += ds * k_[key + d];
        r_.dq_scale[at + d] += ds_scale * std::abs(k_[key + d]);
        r_.dk[key + d] += ds * q_[at + d];
        r_.dk_scale[key + d] += ds_scale * std::abs(q_[at + d]);
      }
    }
  }

  const Case& case_;
  Values q_, k_, v_, dout_;
  Reference r_;
};

class AttentionTypes : public KindTest {};
INSTANTIATE_TEST_SUITE_P(Kinds, AttentionTypes, testing::ValuesIn(every_kind()), name_of_kind);

// Inputs are within [-1, 1). The sum of a score is at most d / sqrt(d), with an error of at most (d + 2) u of that. The
// relative error of the weights is twice the error of the scores, plus the error of ATen's exp (20 units in the last
// place in fp32) and of sums over s keys. Each product over s or d terms adds one rounding per term. In bf16, backward
// also starts from an output that was rounded once, and a GPU's kernels round weights and their gradients to bf16
// before they multiply them.
double relative_bound(const Case& c, at::ScalarType type) {
  const double d = static_cast<double>(c.head_dim), s = static_cast<double>(c.seq_len);
  const double u = accumulator_roundoff(type);
  return 2 * (d + 2) * u * std::sqrt(d) + (2 * s + 2 * d + 48) * u;
}
void expect_equal(const Case& c, const at::TensorOptions& options) {
  const at::ScalarType type = c10::typeMetaToScalarType(options.dtype());
  const Qkv in = c.inputs(options);
  const at::Tensor dout = random_tensor({c.tokens(), c.q_heads() * c.head_dim}, 4, options);
  const Reference expected = Evaluation(c, in, dout).result();
  const Attention forward = attention_forward(in, c.shape());
  const Qkv backward = attention_backward(dout, in, forward, c.shape());
  const double once = type == at::kBFloat16 ? 1.01 * roundoff(type) : 0;
  const double error = relative_bound(c, type) + (options.device() == at::kCUDA ? 2 * once : 0);
  const auto check = [&](const at::Tensor& got, const Values& value, const Values& scale, double relative) {
    EXPECT_EQ(got.scalar_type(), type);
    expect_near(values_of(got), value,
                [&](std::size_t i) { return relative * scale[i] + once * std::abs(value[i]) + 1e-37; });
  };
  check(forward.out, expected.out, expected.out_scale, error);
  check(backward.q, expected.dq, expected.dq_scale, error + once);
  check(backward.k, expected.dk, expected.dk_scale, error + once);
  check(backward.v, expected.dv, expected.dv_scale, error);
}

TEST_P(AttentionTypes, EqualsTheReference) {
  const Case cases[] = {
      {.batch = 1, .seq_len = 1, .kv_heads = 1, .head_dim = 2, .kv_of_q = {0}},
      {.batch = 2, .seq_len = 17, .kv_heads = 2, .head_dim = 8, .kv_of_q = {0, 1}},
      {.batch = 1, .seq_len = 33, .kv_heads = 2, .head_dim = 6, .kv_of_q = {0, 0, 0, 1, 1}},
      {.batch = 2, .seq_len = 5, .kv_heads = 3, .head_dim = 4, .kv_of_q = {0, 2, 2}},  // no query reads head 1
      {.batch = 1, .seq_len = 129, .kv_heads = 1, .head_dim = 16, .kv_of_q = {0, 0}},
      {.batch = 1, .seq_len = 257, .kv_heads = 1, .head_dim = 4, .kv_of_q = {0}},
      {.batch = 2, .seq_len = 96, .kv_heads = 2, .head_dim = 64, .kv_of_q = {0, 0, 1, 1}},
      {.batch = 1, .seq_len = 130, .kv_heads = 1, .head_dim = 128, .kv_of_q = {0, 0, 0, 0}},
      {.batch = 5, .seq_len = 1, .kv_heads = 1, .head_dim = 64, .kv_of_q = {0, 0}},
      {.batch = 1, .seq_len = 5, .kv_heads = 2, .head_dim = 300, .kv_of_q = {0, 0, 1}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(testing::Message() << c.batch << " x " << c.seq_len << ", head_dim " << c.head_dim);
    expect_equal(c, type());
  }
}

TEST_P(AttentionTypes, AcceptsKeyValueHeadsInAnyOrder) {
  expect_equal({.batch = 1, .seq_len = 9, .kv_heads = 3, .head_dim = 6, .kv_of_q = {2, 0, 0, 1, 0, 2}}, type());
}

TEST_P(AttentionTypes, StaysInsideDocuments) {
  expect_equal({.batch = 2,
                .seq_len = 19,
                .kv_heads = 2,
                .head_dim = 6,
                .kv_of_q = {0, 0, 1},
                .cu_seqlens = {0, 1, 4, 19, 30, 38}},
               type());
}

TEST_P(AttentionTypes, OfDocumentsEqualsAttentionOfEachDocument) {
  const Case whole{.seq_len = 21, .kv_heads = 1, .head_dim = 4, .kv_of_q = {0, 0}, .cu_seqlens = {0, 8, 9, 21}};
  const Qkv in = whole.inputs(type());
  const at::Tensor dout = random_tensor({21, 8}, 4, type());
  const Attention forward = attention_forward(in, whole.shape());
  const Qkv backward = attention_backward(dout, in, forward, whole.shape());
  for (std::size_t i = 0; i + 1 < whole.cu_seqlens.size(); ++i) {
    const std::int64_t begin = whole.cu_seqlens[i], length = whole.cu_seqlens[i + 1] - begin;
    const auto cut = [&](const at::Tensor& tensor) { return tensor.narrow(0, begin, length).clone(); };
    const Qkv part{.q = cut(in.q), .k = cut(in.k), .v = cut(in.v)};
    const Case alone{.seq_len = length, .kv_heads = 1, .head_dim = 4, .kv_of_q = {0, 0}, .cu_seqlens = {}};
    const Attention out = attention_forward(part, alone.shape());
    EXPECT_TRUE(same_bits(out.out, cut(forward.out)));
    const Qkv gradient = attention_backward(cut(dout), part, out, alone.shape());
    EXPECT_TRUE(same_bits(gradient.q, cut(backward.q)));
    EXPECT_TRUE(same_bits(gradient.k, cut(backward.k)));
    EXPECT_TRUE(same_bits(gradient.v, cut(backward.v)));
  }
}

// The result must not depend on the distribution of heads over ranks: a head alone gives the same bits as among other
// heads.
TEST_P(AttentionTypes, OfAHeadDoesNotDependOnOtherHeads) {
  if (type().device() == at::kCUDA) GTEST_SKIP() << "tp changes the bits of products on a GPU";
  for (const std::int64_t head_dim : {8, 10, 7}) {  // all heads begin at aligned addresses only with 8
    const Case all{.batch = 2, .seq_len = 70, .kv_heads = 3, .head_dim = head_dim, .kv_of_q = {0, 1, 2}};
    const Qkv in = all.inputs(type());
    const at::Tensor dout = random_tensor({140, 3 * head_dim}, 4, type());
    const Attention forward = attention_forward(in, all.shape());
    const Qkv backward = attention_backward(dout, in, forward, all.shape());
    const Case one{.batch = 2, .seq_len = 70, .kv_heads = 1, .head_dim = head_dim, .kv_of_q = {0}};
    for (std::int64_t head = 0; head < 3; ++head) {
      const Qkv part{.q = in.q.narrow(1, head, 1), .k = in.k.narrow(1, head, 1), .v = in.v.narrow(1, head, 1)};
      const Attention out = attention_forward(part, one.shape());
      EXPECT_TRUE(same_bits(out.out, forward.out.narrow(1, head * head_dim, head_dim))) << head << " of " << head_dim;
      const Qkv gradient = attention_backward(dout.narrow(1, head * head_dim, head_dim), part, out, one.shape());
      EXPECT_TRUE(same_bits(gradient.q, backward.q.narrow(1, head, 1))) << head << " of " << head_dim;
      EXPECT_TRUE(same_bits(gradient.k, backward.k.narrow(1, head, 1))) << head << " of " << head_dim;
      EXPECT_TRUE(same_bits(gradient.v, backward.v.narrow(1, head, 1))) << head << " of " << head_dim;
    }
  }
}

TEST_P(AttentionTypes, HasTheSameBitsWhenRepeated) {
  const Case c{.batch = 1, .seq_len = 70, .kv_heads = 1, .head_dim = 10, .kv_of_q = {0, 0}};
  const Qkv in = c.inputs(type());
  const at::Tensor dout = random_tensor({70, 20}, 4, type());
  const Attention first = attention_forward(in, c.shape());
  const Qkv gradient = attention_backward(dout, in, first, c.shape());
  const Qkv elsewhere{.q = shifted(in.q, 1), .k = shifted(in.k, 3), .v = shifted(in.v, 5)};
  const Attention second = attention_forward(elsewhere, c.shape());
  EXPECT_TRUE(same_bits(first.out, second.out));
  const Qkv again = attention_backward(dout, elsewhere, second, c.shape());
  EXPECT_TRUE(same_bits(gradient.q, again.q));
  EXPECT_TRUE(same_bits(gradient.k, again.k));
  EXPECT_TRUE(same_bits(gradient.v, again.v));
}

TEST_P(AttentionTypes, OfEmptyInputsIsEmpty) {
  const Case cases[] = {{.batch = 0, .seq_len = 4, .kv_heads = 1, .head_dim = 4, .kv_of_q = {0}},
                        {.batch = 1, .seq_len = 4, .kv_heads = 1, .head_dim = 4, .kv_of_q = {}},
                        {.batch = 1, .seq_len = 4, .kv_heads = 0, .head_dim = 4, .kv_of_q = {}}};
  for (const Case& c : cases) {
    const Qkv in = c.inputs(type());
    const at::Tensor dout = random_tensor({c.tokens(), c.q_heads() * 4}, 4, type());
    const Attention forward = attention_forward(in, c.shape());
    EXPECT_EQ(forward.out.sizes(), dout.sizes());
    const Qkv gradient = attention_backward(dout, in, forward, c.shape());
    EXPECT_EQ(gradient.q.sizes(), in.q.sizes());
    for (const double value : values_of(gradient.k)) EXPECT_EQ(value, 0.0);
    for (const double value : values_of(gradient.v)) EXPECT_EQ(value, 0.0);
  }
}

TEST(AttentionGradient, EqualsFiniteDifferences) {
  const Case c{.seq_len = 5, .kv_heads = 2, .head_dim = 4, .kv_of_q = {0, 0, 1}, .cu_seqlens = {0, 3, 5}};
  const Qkv in = c.inputs(at::kDouble);
  const at::Tensor dout = random_tensor({5, 12}, 4, at::kDouble);
  const auto loss = [&] { return dot(attention_forward(in, c.shape()).out, dout); };
  const Qkv gradient = attention_backward(dout, in, attention_forward(in, c.shape()), c.shape());
  const auto bound = [](std::size_t) { return 1e-8; };  // the error is step^2 + roundoff / step at magnitudes near 1
  expect_near(values_of(gradient.q), numeric_gradient(in.q, loss), bound);
  expect_near(values_of(gradient.k), numeric_gradient(in.k, loss), bound);
  expect_near(values_of(gradient.v), numeric_gradient(in.v, loss), bound);
}

TEST(Attention, RejectsMismatchedShapes) {
  const Case good{.batch = 2, .seq_len = 4, .kv_heads = 2, .head_dim = 4, .kv_of_q = {0, 1}};
  const Qkv in = good.inputs(at::kFloat);
  const auto refuses = [&](auto change) {
    Case bad = good;
    change(bad);
    EXPECT_THROW(attention_forward(in, bad.shape()), Error);
  };
  EXPECT_NO_THROW(attention_forward(in, good.shape()));
  refuses([](Case& c) { c.seq_len = 5; });
  refuses([](Case& c) { c.kv_of_q = {0, 2}; });
  refuses([](Case& c) { c.kv_of_q = {0}; });
  refuses([](Case& c) { c.cu_seqlens = {0, 3, 8}; });     // crosses the end of the first sequence
  refuses([](Case& c) { c.cu_seqlens = {0, 4, 4, 8}; });  // an empty document
  refuses([](Case& c) { c.cu_seqlens = {0, 4}; });
}

}  // namespace
}  // namespace tessera::ops::test
