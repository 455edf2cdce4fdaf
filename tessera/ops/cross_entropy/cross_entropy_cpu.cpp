#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "tessera/ops/arithmetic.h"
#include "tessera/ops/cross_entropy/cross_entropy_kernels.h"
#include "tessera/ops/exponential.h"

namespace tessera::ops::cpu {
namespace {

// Returns the maximum of a row. If the row contains a NaN, the result is NaN.
template <typename T>
Accumulator<T> row_maximum(const T* row, std::int64_t count) {
  using A = Accumulator<T>;
  const auto larger = [](A a, A b) { return static_cast<bool>((b > a) | (b != b)) ? b : a; };
  A lanes[kLanes];
  std::fill_n(lanes, kLanes, -std::numeric_limits<A>::infinity());
  std::int64_t start = 0;
  for (; start + kLanes <= count; start += kLanes)
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = larger(lanes[lane], load(row[start + lane]));
  for (int lane = 0; start + lane < count; ++lane) lanes[lane] = larger(lanes[lane], load(row[start + lane]));
  for (int lane = 1; lane < kLanes; ++lane) lanes[0] = larger(lanes[0], lanes[lane]);
  return lanes[0];
}

// Writes one token's sum and target logit.
template <typename T>
void sum_row(const CrossEntropyShape& shape, const CrossEntropySums& a, std::int64_t token, Accumulator<T> maximum) {
  using A = Accumulator<T>;
  A* sums = static_cast<A*>(a.sums);
  const T* row = static_cast<const T*>(a.logits) + token * shape.vocabulary;
  const std::int64_t target = shape.part.row_of(a.targets[token]);
  sums[token] =
      lane_sum<A>(shape.vocabulary, [row, maximum](std::int64_t i) { return exponential(load(row[i]) - maximum); });
  sums[shape.tokens + token] = target >= 0 ? load(row[target]) : A{0};
}

// The values for a row of the gradient: d loss / d logit_i = scale * (exp(logit_i - maximum) / sum - onehot_i).
template <typename A>
struct RowGradient {
  A maximum, inverse_sum, scale;
  std::int64_t target;  // local column, or -1 if the target is not local
};
constexpr std::int64_t kChunk = 512;

template <typename T>
void write_gradient(T* row, std::int64_t count, const RowGradient<Accumulator<T>>& g) {
  using A = Accumulator<T>;
  const bool local = g.target >= 0;
  const A logit = local ? load(row[g.target]) : A{0};
  std::array<A, kChunk> gradient;
  for (std::int64_t start = 0; start < count; start += kChunk) {
    const std::int64_t size = std::min(kChunk, count - start);
    T* __restrict chunk = row + start;
    A* __restrict value = gradient.data();
    for (std::int64_t i = 0; i < size; ++i)
      value[i] = g.scale * (exponential(load(chunk[i]) - g.maximum) * g.inverse_sum);
    for (std::int64_t i = 0; i < size; ++i) chunk[i] = round_to<T>(value[i]);
  }
  if (local) row[g.target] = round_to<T>(g.scale * (exponential(logit - g.maximum) * g.inverse_sum - A{1}));
}

template <typename T>
void finish(const CrossEntropyShape& shape, const CrossEntropyFinish& a) {
  using A = Accumulator<T>;
  const A* sums = static_cast<const A*>(a.sums);
  for (std::int64_t token = 0; token < shape.tokens; ++token) {
    const A maximum = static_cast<const A*>(a.maximum)[token];
    const bool masked = a.targets[token] < 0;
    static_cast<A*>(a.losses)[token] = masked ? A{0} : std::log(sums[token]) + (maximum - sums[shape.tokens + token]);
    if (a.scale == 0) continue;
    T* row = static_cast<T*>(a.logits) + token * shape.vocabulary;
    if (masked)
      std::fill_n(row, shape.vocabulary, T{});
    else
      write_gradient(row, shape.vocabulary,
                     RowGradient<A>{.maximum = maximum,
                                    .inverse_sum = A{1} / sums[token],
                                    .scale = static_cast<A>(a.scale),
                                    .target = shape.part.row_of(a.targets[token])});
  }
}

}  // namespace

void cross_entropy_maximum(const CrossEntropyShape& shape, const CrossEntropyMaximum& a) {
  dispatch_floating(shape.type, [&](auto element) {
    using T = decltype(element);
    for (std::int64_t token = 0; token < shape.tokens; ++token)
      static_cast<Accumulator<T>*>(a.maximum)[token] =
          row_maximum(static_cast<const T*>(a.logits) + token * shape.vocabulary, shape.vocabulary);
  });
}

void cross_entropy_sums(const CrossEntropyShape& shape, const CrossEntropySums& a) {
  dispatch_floating(shape.type, [&](auto element) {
    using T = decltype(element);
    for (std::int64_t token = 0; token < shape.tokens; ++token)
      sum_row<T>(shape, a, token, static_cast<const Accumulator<T>*>(a.maximum)[token]);
  });
}

void cross_entropy_finish(const CrossEntropyShape& shape, const CrossEntropyFinish& a) {
  dispatch_floating(shape.type, [&](auto element) { finish<decltype(element)>(shape, a); });
}

}  // namespace tessera::ops::cpu
