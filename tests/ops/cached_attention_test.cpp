// Checks that attention to a cache equals attention over the whole sequence.
#include "tessera/ops/attention/cached_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tessera/base/error.h"
#include "tessera/ops/attention/attention.h"
#include "tests/ops/values.h"

namespace tessera::ops::test {
namespace {

struct CachedCase {
  std::int64_t tokens = 1, first = 0, kv_heads = 1, head_dim = 2;
  std::vector<int> kv_of_q;

  std::int64_t q_heads() const { return static_cast<std::int64_t>(kv_of_q.size()); }
  double scale() const { return 1 / std::sqrt(static_cast<double>(head_dim)); }
  Qkv inputs(const at::TensorOptions& type) const {
    return {.q = random_tensor({tokens, q_heads(), head_dim}, 1, type),
            .k = random_tensor({tokens, kv_heads, head_dim}, 2, type),
            .v = random_tensor({tokens, kv_heads, head_dim}, 3, type)};
  }
  at::Tensor whole(const Qkv& in) const {
    return attention_forward(in,
                             {.batch = 1, .seq_len = tokens, .kv_of_q = kv_of_q, .cu_seqlens = {}, .scale = scale()})
        .out;
  }
  // The tokens from `first` on, with a cache of more rows than tokens. The other rows are NaN.
  at::Tensor cached(const Qkv& in) const { return cached_attention(in.q.narrow(0, first, tokens - first), cache(in)); }
  CachedAttention cache(const Qkv& in) const {
    const auto rows = [&](const at::Tensor& stored) {
      at::Tensor result = stored.new_full({tokens + 3, kv_heads, head_dim}, std::numeric_limits<double>::quiet_NaN());
      result.narrow(0, 0, tokens).copy_(stored);
      return result;
    };
    return {.keys = rows(in.k), .values = rows(in.v), .first = first, .kv_of_q = kv_of_q, .scale = scale()};
  }
};

class CachedAttentionTypes : public KindTest {};
INSTANTIATE_TEST_SUITE_P(Kinds, CachedAttentionTypes, testing::ValuesIn(every_kind()), name_of_kind);

// Inputs are within [-1, 1), so sums of weights times values are too. Both sides are within the bound of
// attention_test.cpp of the exact value: for scores, the softmax and sums over tokens. In bf16 both results are rounded
// once, and a GPU's kernels round the weights too.
TEST_P(CachedAttentionTypes, EqualsTheWholeSequence) {
  const CachedCase cases[] = {
      {.tokens = 2, .first = 1, .kv_heads = 1, .head_dim = 2, .kv_of_q = {0}},
      {.tokens = 17, .first = 16, .kv_heads = 2, .head_dim = 8, .kv_of_q = {0, 1}},
      {.tokens = 33, .first = 20, .kv_heads = 2, .head_dim = 6, .kv_of_q = {0, 0, 0, 1, 1}},
      {.tokens = 9, .first = 1, .kv_heads = 3, .head_dim = 4, .kv_of_q = {2, 0, 2}},  // no query reads head 1
      {.tokens = 300, .first = 299, .kv_heads = 2, .head_dim = 64, .kv_of_q = {0, 0, 1, 1}},
      {.tokens = 130, .first = 129, .kv_heads = 1, .head_dim = 128, .kv_of_q = {0, 0, 0, 0}},
      {.tokens = 130, .first = 70, .kv_heads = 2, .head_dim = 40, .kv_of_q = {0, 0, 1, 1}},
      {.tokens = 6, .first = 5, .kv_heads = 2, .head_dim = 300, .kv_of_q = {0, 0, 1}},
  };
  for (const CachedCase& c : cases) {
    SCOPED_TRACE(testing::Message() << c.tokens << " after " << c.first << ", head_dim " << c.head_dim);
    const Qkv in = c.inputs(type());
    const at::Tensor got = c.cached(in);
    const Values expected = values_of(c.whole(in).narrow(0, c.first, c.tokens - c.first));
    EXPECT_EQ(got.scalar_type(), GetParam().type);
    const double d = static_cast<double>(c.head_dim), s = static_cast<double>(c.tokens);
    const double rounded = GetParam().type == at::kBFloat16 ? once() : 0;
    const double error = 2 * (d + 2) * u() * std::sqrt(d) + (2 * s + 2 * d + 48) * u() +
                         (GetParam().device == at::kCUDA ? 2 * rounded : 0);
    expect_near(values_of(got), expected,
                [&](std::size_t i) { return 2 * error + 2 * rounded * std::abs(expected[i]) + 1e-37; });
  }
}

TEST_P(CachedAttentionTypes, OfAWholeSequenceHasTheBitsOfAttention) {
  const CachedCase c{.tokens = 21, .first = 0, .kv_heads = 2, .head_dim = 6, .kv_of_q = {0, 0, 1}};
  const Qkv in = c.inputs(type());
  EXPECT_TRUE(same_bits(c.cached(in), c.whole(in)));
}

TEST_P(CachedAttentionTypes, WithoutHeadsIsEmpty) {
  for (const std::int64_t first : {0, 2}) {
    const CachedCase c{.tokens = 3, .first = first, .kv_heads = 0, .head_dim = 4, .kv_of_q = {}};
    EXPECT_EQ(c.cached(c.inputs(type())).sizes(), (at::IntArrayRef{3 - first, 0}));
  }
}

TEST_P(CachedAttentionTypes, PassesOnNaN) {
  const CachedCase c{.tokens = 5, .first = 3, .kv_heads = 1, .head_dim = 4, .kv_of_q = {0}};
  const double nan = std::numeric_limits<double>::quiet_NaN();
  Qkv in = c.inputs(type());
  in.k.select(0, 4).fill_(nan);  // only the last token sees it
  const at::Tensor of_keys = c.cached(in);
  EXPECT_FALSE(of_keys.select(0, 0).isnan().any().item<bool>());
  EXPECT_TRUE(of_keys.select(0, 1).isnan().all().item<bool>());
  in = c.inputs(type());
  in.v.select(0, 1).fill_(nan);
  EXPECT_TRUE(c.cached(in).isnan().all().item<bool>());
}

TEST(CachedAttentionOfWrongShapes, IsRefused) {
  const CachedCase c{.tokens = 6, .first = 2, .kv_heads = 2, .head_dim = 4, .kv_of_q = {0, 1}};
  const Qkv in = c.inputs(at::kFloat);
  const auto refuses = [&](auto change) {
    CachedAttention cache = c.cache(in);
    change(cache);
    EXPECT_THROW(cached_attention(in.q, cache), Error);
  };
  EXPECT_NO_THROW(cached_attention(in.q, c.cache(in)));
  refuses([](CachedAttention& cache) { cache.first = 4; });  // 10 tokens do not fit into 9 rows
  refuses([](CachedAttention& cache) { cache.first = -1; });
  refuses([](CachedAttention& cache) { cache.kv_of_q = {0, 2}; });
  refuses([](CachedAttention& cache) { cache.kv_of_q = {0}; });
  refuses([](CachedAttention& cache) { cache.values = cache.values.narrow(0, 0, 5); });
  refuses([](CachedAttention& cache) { cache.values = cache.values.to(at::kDouble); });
}

}  // namespace
}  // namespace tessera::ops::test
