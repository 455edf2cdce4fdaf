#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tessera/ops/arithmetic.h"
#include "tessera/ops/attention/attention_kernels.h"

namespace tessera::ops::cpu {
namespace {

// Replaces scores by their softmax. A NaN or a positive infinity among the scores makes all results NaN.
template <typename A>
void softmax(std::vector<A>& scores) {
  A most = -std::numeric_limits<A>::infinity(), total = 0;
  for (const A score : scores) most = std::max(most, score);
  for (A& score : scores) total += score = std::exp(score - most);
  for (A& score : scores) score /= total;
}

// One query row of one head over its visible tokens.
template <typename T>
void attend(const CachedAttentionArguments& a, const T* q, const T* k, const T* v, std::vector<Accumulator<T>>& weights,
            std::vector<Accumulator<T>>& sum, T* out) {
  using A = Accumulator<T>;
  const std::int64_t stride = a.kv_heads * a.head_dim;
  for (std::size_t other = 0; other < weights.size(); ++other) {
    const T* __restrict row = k + static_cast<std::int64_t>(other) * stride;
    weights[other] =
        static_cast<A>(a.scale) * lane_sum<A>(a.head_dim, [&](std::int64_t i) { return load(q[i]) * load(row[i]); });
  }
  softmax(weights);
  std::ranges::fill(sum, A{0});
  for (std::size_t other = 0; other < weights.size(); ++other) {
    const T* __restrict row = v + static_cast<std::int64_t>(other) * stride;
    for (std::int64_t i = 0; i < a.head_dim; ++i) sum[static_cast<std::size_t>(i)] += weights[other] * load(row[i]);
  }
  for (std::int64_t i = 0; i < a.head_dim; ++i) out[i] = round_to<T>(sum[static_cast<std::size_t>(i)]);
}

}  // namespace

void cached_attention(const CachedAttentionArguments& a) {
  dispatch_floating(a.type, [&](auto element) {
    using T = decltype(element);
    std::vector<Accumulator<T>> weights, sum(static_cast<std::size_t>(a.head_dim));
    const auto q_heads = static_cast<std::int64_t>(a.map.size());
    for (std::int64_t token = 0; token < a.count; ++token) {
      weights.resize(static_cast<std::size_t>(a.first + token + 1));
      for (std::int64_t head = 0; head < q_heads; ++head) {
        const std::int64_t row = (token * q_heads + head) * a.head_dim;
        const std::int64_t stored = a.map[static_cast<std::size_t>(head)] * a.head_dim;
        attend(a, static_cast<const T*>(a.q) + row, static_cast<const T*>(a.k) + stored,
               static_cast<const T*>(a.v) + stored, weights, sum, static_cast<T*>(a.out) + row);
      }
    }
  });
}

}  // namespace tessera::ops::cpu
