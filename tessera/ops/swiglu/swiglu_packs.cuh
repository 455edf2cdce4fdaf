// SwiGLU on packs of adjacent elements, shared by several kernels. The results have the same bits as on the CPU.
#pragma once
#include "tessera/ops/exponential.h"
#include "tessera/ops/packs.cuh"

namespace tessera::ops::cuda {

// Returns 1 / x rounded to nearest for 1 <= x <= 2^125, with an approximation and a Newton step. The compiler's
// division computes the same for these x, but first checks the exponent.
__device__ __forceinline__ float reciprocal(float x) {
  float approximation;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(approximation) : "f"(x));
  return fmaf(approximation, fmaf(-x, approximation, 1.0f), approximation);
}

template <typename A>
__device__ __noinline__ A sigmoid(A x) {
  return A{1} / (A{1} + exponential(-x));
}
// Writes 1 / (1 + exp(-x)) of each element to `s`, with the same bits as the CPU. Almost always all elements of a pack
// are below kOrdinaryExponent in magnitude, and the fast code without branches runs.
template <typename A, int N>
__device__ __forceinline__ void sigmoids(const A (&x)[N], A (&s)[N]) {
  if constexpr (std::is_same_v<A, float>) {
    bool ordinary = true;
#pragma unroll
    for (int i = 0; i < N; ++i) ordinary = ordinary && fabsf(x[i]) < kOrdinaryExponent;
    if (ordinary) {
#pragma unroll
      for (int i = 0; i < N; ++i) s[i] = reciprocal(1.0f + ordinary_exponential(-x[i]));
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < N; ++i) s[i] = sigmoid(x[i]);
}

// Returns silu(gate) * up.
template <typename T, int N>
__device__ __forceinline__ Pack<T, N> swiglu_of(const Pack<T, N>& gate, const Pack<T, N>& up) {
  Accumulator<T> out[N], g[N], s[N];
#pragma unroll
  for (int k = 0; k < N; ++k) g[k] = gate[k];
  sigmoids(g, s);
#pragma unroll
  for (int k = 0; k < N; ++k) out[k] = g[k] * s[k] * up[k];
  return rounded<T>(out);
}

// The results of backward. `out` is set to the result of swiglu_of only if kWithOutput is true.
template <typename T, int N>
struct SwigluPacks {
  Pack<T, N> dgate, dup, out;
};
template <bool kWithOutput, typename T, int N>
__device__ __forceinline__ SwigluPacks<T, N> swiglu_gradient_of(const Pack<T, N>& gate, const Pack<T, N>& up,
                                                                const Pack<T, N>& dout) {
  using A = Accumulator<T>;
  A dgate[N], dup[N], out[N], g[N], s[N];
#pragma unroll
  for (int k = 0; k < N; ++k) g[k] = gate[k];
  sigmoids(g, s);
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const A d = dout[k];
    dgate[k] = d * up[k] * s[k] * (A{1} + g[k] * (A{1} - s[k]));
    dup[k] = d * g[k] * s[k];
    if constexpr (kWithOutput) out[k] = g[k] * s[k] * up[k];
  }
  SwigluPacks<T, N> result{rounded<T>(dgate), rounded<T>(dup), {}};
  if constexpr (kWithOutput) result.out = rounded<T>(out);
  return result;
}

}  // namespace tessera::ops::cuda
