// Device code that combines arrays (parts) element by element, in the order of the parts.
#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tessera/base/cuda_word.cuh"
#include "tessera/quant/bfloat16.h"
#include "tessera/quant/rounding.h"

namespace tessera::quant {

// An operation that combines parts. In is the element type of the parts, Acc the type of the accumulator, and Out the
// element type of the result.
template <typename AccType, typename InType, typename OutType>
struct Sum {
  using Acc = AccType;
  using In = InType;
  using Out = OutType;
  __device__ static Acc first(In part) { return round_to<Acc>(part); }
  __device__ static Acc next(Acc value, In part) { return value + round_to<Acc>(part); }
};

template <typename T, bool kMaximum>
struct Extreme {
  using Acc = T;
  using In = T;
  using Out = T;
  __device__ static T first(T part) { return part; }
  __device__ static T next(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      return (kMaximum ? b > a : b < a) ? b : a;
    } else {
      using Wide = std::conditional_t<std::is_same_v<T, bfloat16>, float, T>;
      const Wide x = round_to<Wide>(a), y = round_to<Wide>(b);
      return (kMaximum ? y > x : y < x) || y != y ? b : a;
    }
  }
};

// Bytes of one memory access when a thread loads or stores N elements. The address must be aligned to this size.
template <typename T, int N>
inline constexpr int kAccess = sizeof(T) * N < 16 ? static_cast<int>(sizeof(T)) * N : 16;

template <typename T, int N>
__device__ void load(const T* from, T (&values)[N]) {
  using Word = base::CudaWord<kAccess<T, N>>;
  constexpr int kWords = static_cast<int>(sizeof(T)) * N / static_cast<int>(sizeof(Word));
  Word words[kWords];
#pragma unroll
  for (int i = 0; i < kWords; ++i) words[i] = reinterpret_cast<const Word*>(from)[i];
  std::memcpy(values, words, sizeof values);
}
template <typename T, int N>
__device__ void store(T* to, const T (&values)[N]) {
  using Word = base::CudaWord<kAccess<T, N>>;
  constexpr int kWords = static_cast<int>(sizeof(T)) * N / static_cast<int>(sizeof(Word));
  Word words[kWords];
  std::memcpy(words, values, sizeof values);
#pragma unroll
  for (int i = 0; i < kWords; ++i) reinterpret_cast<Word*>(to)[i] = words[i];
}

inline constexpr int kMaxParts = 64;
// The number of parts whose loads are in flight at the same time.
inline constexpr int kAtOnce = 4;

struct PartList {
  const void* data[kMaxParts];
  int used = 0;
};

// Combines kGroups pieces of N elements. Piece g begins at element at[g] of every part. Pieces whose live[g] is false
// are neither read nor written. For a sum, the result is start + parts[0] + parts[1] ... in Acc. If `start` is null,
// the result begins with parts[0]. All inputs are read before the result is written, so `out` may be one of the parts.
template <typename Op, int N, int kGroups>
__device__ void combine(const PartList& parts, const typename Op::Acc* start, typename Op::Out* out,
                        const std::int64_t (&at)[kGroups], const bool (&live)[kGroups],
                        typename Op::Acc (&value)[kGroups][N]) {
  using In = typename Op::In;
  using Out = typename Op::Out;
  if (start != nullptr) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g)
      if (live[g]) load(start + at[g], value[g]);
  }
  for (int begin = 0; begin < parts.used; begin += kAtOnce) {
    In part[kAtOnce][kGroups][N];
#pragma unroll
    for (int p = 0; p < kAtOnce; ++p)
      if (begin + p < parts.used) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g)
          if (live[g]) load(static_cast<const In*>(parts.data[begin + p]) + at[g], part[p][g]);
      }
#pragma unroll
    for (int p = 0; p < kAtOnce; ++p)
      if (begin + p < parts.used) {
        const bool is_first = p == 0 && begin == 0 && start == nullptr;
#pragma unroll
        for (int g = 0; g < kGroups; ++g)
#pragma unroll
          for (int i = 0; i < N; ++i)
            value[g][i] = is_first ? Op::first(part[p][g][i]) : Op::next(value[g][i], part[p][g][i]);
      }
  }
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    Out result[N];
#pragma unroll
    for (int i = 0; i < N; ++i) result[i] = round_to<Out>(value[g][i]);
    if (live[g]) store(out + at[g], result);
  }
}

}  // namespace tessera::quant
