// Compares the norms of heads with RoPE to their formulas in fp64, on the CPU and on CUDA, and on the CPU to the two
// operators.
#include "tessera/ops/head_norms/head_norm_rope.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <ostream>

#include "tessera/base/error.h"
#include "tessera/ops/norm/rms_norm.h"
#include "tests/ops/values.h"

namespace tessera::ops::test {
namespace {

constexpr std::int64_t kPositions = 64;
constexpr double kQEps = 1e-6, kKEps = 1e-2;

struct HeadCase {
  std::int64_t tokens = 0, q_heads = 0, kv_heads = 0, head_dim = 0;
};
std::ostream& operator<<(std::ostream& out, const HeadCase& it) {
  return out << it.tokens << " tokens, " << it.q_heads << " and " << it.kv_heads << " heads of " << it.head_dim;
}
// 1024 elements are too many for the kernels in bf16. Halves of 3 and 37 elements are no whole packs.
const std::vector<HeadCase> kHeadCases{{9, 5, 2, 128}, {7, 4, 1, 6},   {5, 3, 3, 74},  {4, 0, 3, 16},
                                       {6, 5, 0, 64},  {3, 2, 1, 256}, {3, 2, 1, 512}, {2, 3, 1, 1024},
                                       {0, 2, 1, 128}, {3, 0, 0, 8},   {1, 1, 1, 2},   {700, 9, 2, 80}};

HeadNormRope call_of(const HeadCase& sizes, const at::TensorOptions& type) {
  const std::int64_t width = (sizes.q_heads + 2 * sizes.kv_heads) * sizes.head_dim;
  std::vector<std::int64_t> positions;
  for (std::int64_t token = 0; token < sizes.tokens; ++token) positions.push_back(token * 37 % kPositions);
  return {.qkv = random_tensor({sizes.tokens, width}, 1, type, 3),
          .positions = ids_tensor(positions, type.device()),
          .heads = {.q_heads = sizes.q_heads, .kv_heads = sizes.kv_heads, .head_dim = sizes.head_dim},
          .q = {.weight = random_tensor({sizes.head_dim}, 2, type), .eps = kQEps},
          .k = {.weight = random_tensor({sizes.head_dim}, 3, type), .eps = kKEps},
          .rope = make_rope_table(kPositions, sizes.head_dim, 1e4, {}, c10::typeMetaToScalarType(type.dtype()),
                                  type.device())};
}
Qkv gradient_of(const HeadCase& sizes, const at::TensorOptions& type) {
  return {.q = random_tensor({sizes.tokens, sizes.q_heads, sizes.head_dim}, 4, type),
          .k = random_tensor({sizes.tokens, sizes.kv_heads, sizes.head_dim}, 5, type),
          .v = random_tensor({sizes.tokens, sizes.kv_heads, sizes.head_dim}, 6, type)};
}

// One head of q or k in fp64, in the notation of the formulas: y = R (x r w).
struct Head {
  Values x, w, cosine, sine;
  double rstd = 0;

  std::size_t half() const { return x.size() / 2; }
  // Returns R v, or its transpose.
  Values turned(const Values& v, bool back) const {
    Values result(v.size());
    for (std::size_t i = 0; i < half(); ++i) {
      const double s = back ? -sine[i] : sine[i];
      result[i] = v[i] * cosine[i] - v[i + half()] * s;
      result[i + half()] = v[i + half()] * cosine[i] + v[i] * s;
    }
    return result;
  }
  // Returns a bound of the magnitudes of R v.
  Values magnitudes(const Values& v) const {
    Values result(v.size());
    for (std::size_t i = 0; i < v.size(); ++i)
      result[i] = std::abs(v[i]) + std::abs(v[i < half() ? i + half() : i - half()]);
    return result;
  }
};

// The heads of a call, as doubles.
class Heads {
 public:
  explicit Heads(const HeadNormRope& call)
      : call_(call),
        qkv_(values_of(call.qkv)),
        positions_(values_of(call.positions.to(at::kDouble))),
        cosine_(values_of(call.rope.cosine)),
        sine_(values_of(call.rope.sine)),
        q_(values_of(call.q.weight)),
        k_(values_of(call.k.weight)) {}

  Head head(std::int64_t token, std::int64_t index) const {
    const auto dim = static_cast<std::size_t>(call_.heads.head_dim), half = dim / 2;
    const bool is_q = index < call_.heads.q_heads;
    const auto part = [](const Values& values, std::size_t first, std::size_t count) {
      const auto begin = values.begin() + static_cast<std::ptrdiff_t>(first);
      return Values(begin, begin + static_cast<std::ptrdiff_t>(count));
    };
    const auto at = static_cast<std::size_t>(token * call_.qkv.size(1)) + static_cast<std::size_t>(index) * dim;
    const auto position = static_cast<std::size_t>(positions_[static_cast<std::size_t>(token)]);
    Head result{.x = part(qkv_, at, dim),
                .w = is_q ? q_ : k_,
                .cosine = part(cosine_, position * half, half),
                .sine = part(sine_, position * half, half)};
    double squares = 0;
    for (const double value : result.x) squares += value * value;
    result.rstd = 1 / std::sqrt(squares / static_cast<double>(dim) + (is_q ? kQEps : kKEps));
    return result;
  }

 private:
  const HeadNormRope& call_;
  Values qkv_, positions_, cosine_, sine_, q_, k_;
};

class HeadNormRopeTest : public KindTest {
 protected:
  // Bounds of relative errors: of `roundings` roundings to the model's type, and of sums over a head and `terms` terms.
  double bound(double roundings, std::int64_t head_dim, std::int64_t terms = 0) const {
    return roundings * once() + static_cast<double>(head_dim + terms + 24) * u();
  }
};
INSTANTIATE_TEST_SUITE_P(Kinds, HeadNormRopeTest, testing::ValuesIn(every_kind()), name_of_kind);

Values at_head(const at::Tensor& tensor, std::int64_t token, std::int64_t head) {
  return values_of(tensor.select(0, token).select(0, head).contiguous());
}

TEST_P(HeadNormRopeTest, ForwardMatchesItsFormula) {
  for (const HeadCase& sizes : kHeadCases) {
    SCOPED_TRACE(sizes);
    const HeadNormRope call = call_of(sizes, type());
    const NormedHeads result = head_norm_rope_forward(call);
    EXPECT_TRUE(same_bits(result.rotated.v.contiguous(), values_of(call.qkv, call.heads).contiguous()));
    const Heads heads(call);
    for (std::int64_t token = 0; token<sizes.tokens; token += sizes.tokens> 100 ? 41 : 1)
      for (std::int64_t index = 0; index < sizes.q_heads + sizes.kv_heads; ++index) {
        const Head head = heads.head(token, index);
        const Values rstd = values_of(result.rstd.select(0, token).narrow(0, index, 1).contiguous());
        EXPECT_NEAR(rstd[0], head.rstd, bound(0, sizes.head_dim) * head.rstd);
        Values normed(head.x.size());
        for (std::size_t i = 0; i < normed.size(); ++i) normed[i] = head.x[i] * head.rstd * head.w[i];
        const Values sizes_of_terms = head.magnitudes(normed);
        const Values got = index < sizes.q_heads ? at_head(result.rotated.q, token, index)
                                                 : at_head(result.rotated.k, token, index - sizes.q_heads);
        expect_near(got, head.turned(normed, false),
                    [&](std::size_t i) { return bound(2, sizes.head_dim) * sizes_of_terms[i] + 1e-37; });
      }
  }
}

TEST_P(HeadNormRopeTest, BackwardMatchesItsFormula) {
  for (const HeadCase& sizes : kHeadCases) {
    SCOPED_TRACE(sizes);
    const HeadNormRope call = call_of(sizes, type());
    const NormedHeads forward = head_norm_rope_forward(call);
    const Qkv gradient = gradient_of(sizes, type());
    const auto [dqkv, dq, dk] = head_norm_rope_backward(call, forward.rstd, gradient);
    EXPECT_TRUE(same_bits(values_of(dqkv, call.heads).contiguous(), gradient.v));
    const Heads heads(call);
    const auto dim = static_cast<std::size_t>(sizes.head_dim);
    Values weights[2] = {Values(dim), Values(dim)}, weight_terms[2] = {Values(dim), Values(dim)};
    for (std::int64_t token = 0; token < sizes.tokens; ++token)
      for (std::int64_t index = 0; index < sizes.q_heads + sizes.kv_heads; ++index) {
        const bool is_q = index < sizes.q_heads;
        const Head head = heads.head(token, index);
        const Values dy = is_q ? at_head(gradient.q, token, index) : at_head(gradient.k, token, index - sizes.q_heads);
        const Values g = head.turned(dy, true), terms = head.magnitudes(dy);
        double product = 0, products = 0;
        for (std::size_t i = 0; i < dim; ++i) {
          product += g[i] * head.w[i] * head.x[i];
          products += terms[i] * std::abs(head.w[i] * head.x[i]);
          weights[is_q ? 0 : 1][i] += g[i] * head.x[i] * head.rstd;
          weight_terms[is_q ? 0 : 1][i] += terms[i] * std::abs(head.x[i]) * head.rstd;
        }
        const double factor = head.rstd * head.rstd * head.rstd / static_cast<double>(dim);
        Values expected(dim), size_of(dim);
        for (std::size_t i = 0; i < dim; ++i) {
          expected[i] = g[i] * head.w[i] * head.rstd - head.x[i] * factor * product;
          size_of[i] = terms[i] * std::abs(head.w[i]) * head.rstd + std::abs(head.x[i]) * factor * products;
        }
        if (sizes.tokens > 100 && token % 41 != 0) continue;
        const at::Tensor row = dqkv.select(0, token).narrow(0, index * sizes.head_dim, sizes.head_dim);
        expect_near(values_of(row.contiguous()), expected,
                    [&](std::size_t i) { return bound(3, 2 * sizes.head_dim) * size_of[i] + 1e-37; });
      }
    const std::int64_t terms = sizes.tokens * (sizes.q_heads + sizes.kv_heads);
    for (const bool is_q : {true, false})
      expect_near(values_of(is_q ? dq : dk), weights[is_q ? 0 : 1],
                  [&](std::size_t i) { return bound(2, sizes.head_dim, terms) * weight_terms[is_q ? 0 : 1][i]; });
  }
}

TEST_P(HeadNormRopeTest, ASecondForwardAndPartsOfTheTokensHaveTheSameBits) {
  for (const HeadCase& sizes : kHeadCases) {
    const HeadNormRope call = call_of(sizes, type());
    const NormedHeads whole = head_norm_rope_forward(call);
    const Qkv again = head_norm_rope_apply(call, whole.rstd);
    EXPECT_TRUE(same_bits(again.q, whole.rotated.q));
    EXPECT_TRUE(same_bits(again.k, whole.rotated.k));
    if (sizes.tokens < 3) continue;
    HeadNormRope part = call;
    part.qkv = call.qkv.narrow(0, 1, sizes.tokens - 2), part.positions = call.positions.narrow(0, 1, sizes.tokens - 2);
    const NormedHeads some = head_norm_rope_forward(part);
    EXPECT_TRUE(same_bits(some.rotated.q, whole.rotated.q.narrow(0, 1, sizes.tokens - 2)));
    EXPECT_TRUE(same_bits(some.rotated.k, whole.rotated.k.narrow(0, 1, sizes.tokens - 2)));
    EXPECT_TRUE(same_bits(some.rstd, whole.rstd.narrow(0, 1, sizes.tokens - 2)));
    const Qkv gradient = gradient_of(sizes, type());
    const at::Tensor dqkv = head_norm_rope_backward(call, whole.rstd, gradient).qkv;
    const auto inner = [&](const at::Tensor& tensor) { return tensor.narrow(0, 1, sizes.tokens - 2); };
    const at::Tensor of_part =
        head_norm_rope_backward(part, some.rstd, {inner(gradient.q), inner(gradient.k), inner(gradient.v)}).qkv;
    EXPECT_TRUE(same_bits(of_part, inner(dqkv)));
  }
}

// Values that are not finite stay in their head.
TEST_P(HeadNormRopeTest, ValuesThatAreNotFiniteStayInTheirHead) {
  const HeadCase sizes{.tokens = 6, .q_heads = 3, .kv_heads = 2, .head_dim = 128};
  const HeadNormRope call = call_of(sizes, type());
  const NormedHeads expected = head_norm_rope_forward(call);
  for (const double value : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    HeadNormRope bad = call;
    bad.qkv = call.qkv.clone();
    bad.qkv[2].slice(0, sizes.head_dim + 5, sizes.head_dim + 6).fill_(value);
    const NormedHeads got = head_norm_rope_forward(bad);
    for (std::int64_t token = 0; token < sizes.tokens; ++token)
      for (std::int64_t head = 0; head < sizes.q_heads; ++head) {
        const at::Tensor row = got.rotated.q.select(0, token).select(0, head);
        if (token == 2 && head == 1) {
          EXPECT_FALSE(std::isfinite(values_of(row.contiguous())[5]));
          continue;
        }
        EXPECT_TRUE(same_bits(row.contiguous(), expected.rotated.q.select(0, token).select(0, head).contiguous()));
      }
    EXPECT_TRUE(same_bits(got.rotated.k, expected.rotated.k));
  }
}

TEST_P(HeadNormRopeTest, APositionOutsideTheTableIsSeen) {
  const HeadCase sizes{.tokens = 3, .q_heads = 2, .kv_heads = 1, .head_dim = 16};
  HeadNormRope call = call_of(sizes, type());
  call.positions = ids({0, kPositions, 5});
  if (GetParam().device == at::kCPU) {
    EXPECT_THROW(head_norm_rope_forward(call), Error);
    return;
  }
  const Values q = values_of(head_norm_rope_forward(call).rotated.q);
  for (std::size_t i = 0; i < q.size(); ++i) EXPECT_EQ(std::isnan(q[i]), i / 32 == 1) << i;
}

// On the CPU the results are those of rms_norm and split_rope.
TEST(HeadNormRope, EqualsTheTwoOperatorsOnCpus) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble})
    for (const HeadCase& sizes : kHeadCases) {
      const HeadNormRope call = call_of(sizes, type);
      const std::int64_t q = sizes.q_heads * sizes.head_dim, kv = sizes.kv_heads * sizes.head_dim;
      const auto rows = [&](const at::Tensor& from, std::int64_t first, std::int64_t columns) {
        return from.narrow(1, first, columns).reshape({sizes.tokens * columns / sizes.head_dim, sizes.head_dim});
      };
      const RmsNorm of_q = rms_norm_forward(rows(call.qkv, 0, q), {}, call.q.weight, kQEps),
                    of_k = rms_norm_forward(rows(call.qkv, q, kv), {}, call.k.weight, kKEps);
      const at::Tensor normed =
          at::cat({of_q.y.view({sizes.tokens, q}), of_k.y.view({sizes.tokens, kv}), call.qkv.narrow(1, q + kv, kv)}, 1);
      const Qkv expected =
          split_rope_forward(normed, call.positions, call.rope, sizes.q_heads, sizes.kv_heads, sizes.head_dim);
      const NormedHeads got = head_norm_rope_forward(call);
      EXPECT_TRUE(same_bits(got.rotated.q, expected.q));
      EXPECT_TRUE(same_bits(got.rotated.k, expected.k));
      const Qkv gradient = gradient_of(sizes, type);
      const at::Tensor turned = split_rope_backward(gradient, call.positions, call.rope);
      at::Tensor dq = call.q.weight.new_empty({sizes.head_dim}, accumulator(at::TensorOptions(type))), dk = dq.clone();
      const at::Tensor q_rows =
                           rms_norm_backward(rows(turned, 0, q), {}, of_q.sum, of_q.rstd, call.q.weight, dq, false),
                       k_rows =
                           rms_norm_backward(rows(turned, q, kv), {}, of_k.sum, of_k.rstd, call.k.weight, dk, false);
      const auto [dqkv, q_sum, k_sum] = head_norm_rope_backward(call, got.rstd, gradient);
      EXPECT_TRUE(same_bits(rows(dqkv, 0, q), q_rows));
      EXPECT_TRUE(same_bits(rows(dqkv, q, kv), k_rows));
      EXPECT_TRUE(same_bits(q_sum, dq));
      EXPECT_TRUE(same_bits(k_sum, dk));
    }
}

TEST(HeadNormRope, RefusesOperandsThatDoNotFit) {
  const HeadNormRope call = call_of({.tokens = 3, .q_heads = 2, .kv_heads = 1, .head_dim = 8}, at::kFloat);
  const auto refused = [&](auto change) {
    HeadNormRope other = call;
    change(other);
    EXPECT_THROW(head_norm_rope_forward(other), Error);
  };
  refused([](HeadNormRope& it) { it.heads.head_dim = 7; });
  refused([](HeadNormRope& it) { it.heads.q_heads = 3; });
  refused([](HeadNormRope& it) { it.heads.kv_heads = -1; });
  refused([](HeadNormRope& it) { it.q.weight = it.q.weight.narrow(0, 0, 4); });
  refused([](HeadNormRope& it) { it.k.weight = it.k.weight.to(at::kDouble); });
  refused([](HeadNormRope& it) { it.positions = it.positions.narrow(0, 0, 2); });
  refused([](HeadNormRope& it) { it.rope.sine = at::Tensor(); });
  EXPECT_THROW(head_norm_rope_apply(call, at::Tensor()), Error);
}

}  // namespace
}  // namespace tessera::ops::test
