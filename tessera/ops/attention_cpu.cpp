#include <algorithm>
#include <array>

#include "tessera/ops/arithmetic.h"
#include "tessera/ops/attention_kernels.h"

namespace tessera::ops::cpu {

void expand_heads(const HeadArguments& a) {
  dispatch_floating(a.type, [&](auto element) {
    using T = decltype(element);
    auto* __restrict to = static_cast<Accumulator<T>*>(a.to);
    for (std::int64_t token = 0; token < a.tokens; ++token) {
      for (const int head : a.map) {
        const T* __restrict from = static_cast<const T*>(a.from) + (token * a.heads + head) * a.head_dim;
        for (std::int64_t i = 0; i < a.head_dim; ++i) to[i] = load(from[i]);
        to += a.head_dim;
      }
    }
  });
}

void reduce_heads(const HeadArguments& a) {
  constexpr std::int64_t chunk = 256;
  dispatch_floating(a.type, [&](auto element) {
    using T = decltype(element);
    using A = Accumulator<T>;
    const auto query_heads = static_cast<std::int64_t>(a.map.size());
    std::array<A, chunk> sum;
    for (std::int64_t row = 0; row < a.tokens * a.heads; ++row) {
      const A* token = static_cast<const A*>(a.from) + row / a.heads * query_heads * a.head_dim;
      for (std::int64_t start = 0; start < a.head_dim; start += chunk) {
        const std::int64_t count = std::min(chunk, a.head_dim - start);
        sum.fill(A{0});
        for (std::int64_t head = 0; head < query_heads; ++head) {
          if (a.map[static_cast<std::size_t>(head)] != row % a.heads) continue;
          const A* __restrict part = token + head * a.head_dim + start;
          for (std::int64_t i = 0; i < count; ++i) sum[static_cast<std::size_t>(i)] += part[i];
        }
        T* __restrict to = static_cast<T*>(a.to) + row * a.head_dim + start;
        for (std::int64_t i = 0; i < count; ++i) to[i] = round_to<T>(sum[static_cast<std::size_t>(i)]);
      }
    }
  });
}

}  // namespace tessera::ops::cpu
