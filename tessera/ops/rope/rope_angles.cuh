// The angles of rotary position embeddings in CUDA kernels. A thread turns packs of the first half of a head, with the
// matching packs of the second half.
#pragma once
#include <cstdint>
#include <limits>

#include "tessera/ops/packs.cuh"

namespace tessera::ops::cuda {

// A table of angles, and the position of each token in the table.
template <typename A>
struct AngleTable {
  const std::int64_t* positions;  // [tokens]
  const A *cosine, *sine;         // [rows, half]
  std::int64_t rows, half;
};

// Loads N values with accesses of at most 16 bytes.
template <bool kWhole, int N, typename A>
__device__ __forceinline__ void load_values(const A* data, std::int64_t first, std::int64_t count, A (&values)[N]) {
  constexpr int kWidth = N < kPack<A> ? N : kPack<A>;
#pragma unroll
  for (int i = 0; i < N; i += kWidth) {
    const auto pack = load_pack<kWhole, kWidth>(data, first + i, count);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) values[i + k] = pack[k];
  }
}

// The angles of N adjacent elements of the first half of a token's heads. kForward: turns by the angle, otherwise by
// the opposite angle.
template <bool kForward, typename A, int N>
struct Angles {
  A cosine[N], sine[N];

  // The angles are NaN for a position outside the table.
  template <bool kWhole>
  __device__ __forceinline__ void load(const AngleTable<A>& table, std::int64_t token, std::int64_t first) {
    const std::int64_t position = table.positions[token];
    const bool known = position >= 0 && position < table.rows;
    const std::int64_t start = known ? position * table.half : 0, count = known ? table.half : 0;
    load_values<kWhole>(table.cosine + start, first, count, cosine);
    load_values<kWhole>(table.sine + start, first, count, sine);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (!known) cosine[i] = std::numeric_limits<A>::quiet_NaN();
      if (!kForward) sine[i] = -sine[i];
    }
  }
  template <typename T>
  __device__ __forceinline__ void turn(Pack<T, N>& left, Pack<T, N>& right) const {
    A turned_left[N], turned_right[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      turned_left[i] = left[i] * cosine[i] - right[i] * sine[i];
      turned_right[i] = right[i] * cosine[i] + left[i] * sine[i];
    }
    left = rounded<T>(turned_left);
    right = rounded<T>(turned_right);
  }
};

}  // namespace tessera::ops::cuda
