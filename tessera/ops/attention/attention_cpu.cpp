#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "tessera/ops/arithmetic.h"
#include "tessera/ops/attention/attention_kernels.h"

namespace tessera::ops::cpu {
namespace {

template <typename A>
constexpr A kInfinity = std::numeric_limits<A>::infinity();

// Returns the largest magnitude in the rows; NaN counts as larger than infinity.
template <typename A>
A largest_magnitude(const void* rows, const PlainArguments& a) {
  // Positive numbers have the same order as their bits.
  using Bits = std::conditional_t<sizeof(A) == 4, std::int32_t, std::int64_t>;
  Bits largest = 0;
  for (std::int64_t token = 0; token < a.length; ++token) {
    const A* __restrict row = static_cast<const A*>(rows) + token * a.stride;
    for (std::int64_t i = 0; i < a.head_dim; ++i)
      largest = std::max(largest, std::bit_cast<Bits>(row[i]) & std::numeric_limits<Bits>::max());
  }
  return std::bit_cast<A>(largest);
}

// The rows of one head, converted to A. Computes the softmax of the head one row at a time.
template <typename A>
class Head {
 public:
  explicit Head(const PlainArguments& a) : a_(a), weights_(static_cast<std::size_t>(a.length)) {}

  const A* row(const void* rows, std::int64_t token) const { return static_cast<const A*>(rows) + token * a_.stride; }
  A* row(void* rows, std::int64_t token) const { return static_cast<A*>(rows) + token * a_.stride; }
  A inner(const A* x, const A* y) const {
    return lane_sum<A>(a_.head_dim, [&](std::int64_t i) { return x[i] * y[i]; });
  }
  A score(std::int64_t token, std::int64_t other) const {
    return static_cast<A>(a_.scale) * inner(row(a_.q, token), row(a_.k, other));
  }
  void add(A factor, const A* __restrict from, A* __restrict to) const {
    for (std::int64_t i = 0; i < a_.head_dim; ++i) to[i] += factor * from[i];
  }
  void fill(A* to, A value) const { std::fill_n(to, a_.head_dim, value); }

  // Returns the softmax weights of tokens 0 to `token`, or null if all of the weights are NaN.
  const A* weigh(std::int64_t token) {
    const auto visible = static_cast<std::size_t>(token) + 1;
    A most = -kInfinity<A>;
    for (std::size_t other = 0; other < visible; ++other) {
      weights_[other] = score(token, static_cast<std::int64_t>(other));
      if (!(weights_[other] < kInfinity<A>)) return nullptr;  // this condition is also true for NaN
      most = std::max(most, weights_[other]);
    }
    if (most == -kInfinity<A>) return nullptr;
    A total = 0;
    for (std::size_t other = 0; other < visible; ++other) total += weights_[other] = std::exp(weights_[other] - most);
    for (std::size_t other = 0; other < visible; ++other) weights_[other] /= total;
    return weights_.data();
  }

 private:
  const PlainArguments& a_;
  std::vector<A> weights_;
};

template <typename A>
bool has_finite_scores(const PlainArguments& a) {
  const Head<A> head(a);
  for (std::int64_t token = 0; token < a.length; ++token)
    for (std::int64_t other = 0; other <= token; ++other)
      if (!(std::abs(head.score(token, other)) < kInfinity<A>)) return false;
  return true;
}

// If all weights of a row are NaN, dq of its token becomes NaN, and so do dk and dv of every token that it attends to.
template <typename A>
void plain_gradients(const PlainArguments& a) {
  Head<A> head(a);
  std::vector<A> gradients(static_cast<std::size_t>(a.length));  // gradients of the weights
  std::int64_t nan_until = 0;
  for (std::int64_t token = 0; token < a.length; ++token)
    for (void* rows : {a.dq, a.dk, a.dv}) head.fill(head.row(rows, token), A{0});
  for (std::int64_t token = 0; token < a.length; ++token) {
    const A* weights = head.weigh(token);
    if (weights == nullptr) {
      head.fill(head.row(a.dq, token), std::numeric_limits<A>::quiet_NaN());
      nan_until = token + 1;
      continue;
    }
    const A* dout = head.row(a.dout, token);
    A mean = 0;
    for (std::int64_t other = 0; other <= token; ++other) {
      gradients[static_cast<std::size_t>(other)] = head.inner(dout, head.row(a.v, other));
      mean += weights[other] * gradients[static_cast<std::size_t>(other)];
    }
    for (std::int64_t other = 0; other <= token; ++other) {
      const A score = static_cast<A>(a.scale) * weights[other] * (gradients[static_cast<std::size_t>(other)] - mean);
      head.add(score, head.row(a.k, other), head.row(a.dq, token));
      head.add(score, head.row(a.q, token), head.row(a.dk, other));
      head.add(weights[other], dout, head.row(a.dv, other));
    }
  }
  for (std::int64_t token = 0; token < nan_until; ++token)
    for (void* rows : {a.dk, a.dv}) head.fill(head.row(rows, token), std::numeric_limits<A>::quiet_NaN());
}

}  // namespace

bool is_finite(const PlainArguments& a) {
  bool result = true;
  dispatch_accumulator(a.type, [&](auto element) {
    using A = decltype(element);
    const A q = largest_magnitude<A>(a.q, a), k = largest_magnitude<A>(a.k, a), v = largest_magnitude<A>(a.v, a);
    const A dout = a.dout == nullptr ? A{0} : largest_magnitude<A>(a.dout, a);
    for (const A largest : {q, k, v, dout}) result = result && largest < kInfinity<A>;
    // Scores are not computed if no sum of products can come near the largest number.
    const double bound = static_cast<double>(q) * static_cast<double>(k) * static_cast<double>(a.head_dim) *
                         std::max(1.0, std::abs(a.scale));
    result = result && (bound < std::numeric_limits<A>::max() / 2 || has_finite_scores<A>(a));
  });
  return result;
}

void plain_forward(const PlainArguments& a) {
  dispatch_accumulator(a.type, [&](auto element) {
    using A = decltype(element);
    Head<A> head(a);
    for (std::int64_t token = 0; token < a.length; ++token) {
      A* out = head.row(a.out, token);
      const A* weights = head.weigh(token);
      head.fill(out, weights == nullptr ? std::numeric_limits<A>::quiet_NaN() : A{0});
      if (weights == nullptr) continue;
      for (std::int64_t other = 0; other <= token; ++other) head.add(weights[other], head.row(a.v, other), out);
    }
  });
}

void plain_backward(const PlainArguments& a) {
  dispatch_accumulator(a.type, [&](auto element) { plain_gradients<decltype(element)>(a); });
}

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
