#include <algorithm>

#include "tessera/ops/arithmetic.h"
#include "tessera/ops/rope/rope_kernels.h"

namespace tessera::ops::cpu {
namespace {

// The angles of one token.
template <typename A>
struct Rotation {
  const A* cosine;
  const A* sine;
  std::int64_t half;  // head_dim / 2
};

// Maps (a, b) to (a cos - b sin, b cos + a sin) for the pairs (i, i + half). Backward uses the opposite angle.
template <bool kForward, typename T>
void rotate(const Rotation<Accumulator<T>>& rotation, const T* __restrict from, T* __restrict to) {
  const auto* __restrict cosine = rotation.cosine;
  const auto* __restrict sine = rotation.sine;
  const std::int64_t half = rotation.half;
  for (std::int64_t i = 0; i < half; ++i) {
    const auto a = load(from[i]);
    const auto b = load(from[i + half]);
    const auto s = kForward ? sine[i] : -sine[i];
    to[i] = round_to<T>(a * cosine[i] - b * s);
    to[i + half] = round_to<T>(b * cosine[i] + a * s);
  }
}

template <typename A, typename Arguments>
Rotation<A> rotation_of(const Arguments& a, std::int64_t token) {
  const std::int64_t half = a.head_dim / 2, start = a.positions[token] * half;
  return {
      .cosine = static_cast<const A*>(a.cosine) + start, .sine = static_cast<const A*>(a.sine) + start, .half = half};
}

}  // namespace

void split_rope_forward(const SplitRopeForward& a) {
  dispatch_floating(a.type, [&](auto element) {
    using T = decltype(element);
    const std::int64_t q_size = a.q_heads * a.head_dim, kv_size = a.kv_heads * a.head_dim;
    for (std::int64_t token = 0; token < a.tokens; ++token) {
      const auto rotation = rotation_of<Accumulator<T>>(a, token);
      const T* row = static_cast<const T*>(a.stacked) + token * (q_size + 2 * kv_size);
      T* q = static_cast<T*>(a.q) + token * q_size;
      T* k = static_cast<T*>(a.k) + token * kv_size;
      for (std::int64_t at = 0; at < q_size; at += a.head_dim) rotate<true>(rotation, row + at, q + at);
      for (std::int64_t at = 0; at < kv_size; at += a.head_dim) rotate<true>(rotation, row + q_size + at, k + at);
      std::copy_n(row + q_size + kv_size, kv_size, static_cast<T*>(a.v) + token * kv_size);
    }
  });
}

void split_rope_backward(const SplitRopeBackward& a) {
  dispatch_floating(a.type, [&](auto element) {
    using T = decltype(element);
    const std::int64_t q_size = a.q_heads * a.head_dim, kv_size = a.kv_heads * a.head_dim;
    for (std::int64_t token = 0; token < a.tokens; ++token) {
      const auto rotation = rotation_of<Accumulator<T>>(a, token);
      T* row = static_cast<T*>(a.stacked) + token * (q_size + 2 * kv_size);
      const T* q = static_cast<const T*>(a.q) + token * q_size;
      const T* k = static_cast<const T*>(a.k) + token * kv_size;
      for (std::int64_t at = 0; at < q_size; at += a.head_dim) rotate<false>(rotation, q + at, row + at);
      for (std::int64_t at = 0; at < kv_size; at += a.head_dim) rotate<false>(rotation, k + at, row + q_size + at);
      std::copy_n(static_cast<const T*>(a.v) + token * kv_size, kv_size, row + q_size + kv_size);
    }
  });
}

}  // namespace tessera::ops::cpu
