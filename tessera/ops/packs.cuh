// Code that the CUDA kernels share: packs of adjacent elements that one memory access moves, sums over a warp and a
// block, and launch sizes. The elements of a pack and the order of sums do not depend on the alignment of memory.
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "tessera/base/cuda_check.h"
#include "tessera/base/cuda_stream.h"
#include "tessera/base/cuda_word.cuh"
#include "tessera/ops/arithmetic.h"

namespace tessera::ops::cuda {

inline constexpr int kAccessBytes = 16;  // bytes of a thread's widest memory access
inline constexpr int kWarp = 32;

// N adjacent elements in registers. pack[i] is element i in the arithmetic type.
template <typename T, int N>
class alignas(sizeof(T) * N) Pack {
 public:
  __device__ __forceinline__ Accumulator<T> operator[](int i) const { return load(elements_[i]); }
  __device__ __forceinline__ T get(int i) const { return elements_[i]; }
  __device__ __forceinline__ void set(int i, T value) { elements_[i] = value; }

 private:
  T elements_[N];
};
// Stores two elements in each register. The compiler would use a register for each element.
template <int N>
class alignas(2 * N) Pack<quant::bfloat16, N> {
 public:
  __device__ __forceinline__ float operator[](int i) const {
    return __uint_as_float(i % 2 == 0 ? words_[i / 2] << 16 : words_[i / 2] & 0xFFFF0000u);
  }
  __device__ __forceinline__ quant::bfloat16 get(int i) const {
    quant::bfloat16 value;
    value.bits = static_cast<std::uint16_t>(words_[i / 2] >> (i % 2 * 16));
    return value;
  }
  __device__ __forceinline__ void set(int i, quant::bfloat16 value) {
    words_[i / 2] = __byte_perm(words_[i / 2], value.bits, i % 2 == 0 ? 0x3254 : 0x5410);
  }
  // Sets elements i and i + 1 to `low` and `high`, rounded to nearest even.
  __device__ __forceinline__ void set_pair(int i, float low, float high) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(words_[i / 2]) : "f"(high), "f"(low));
  }

 private:
  std::uint32_t words_[N / 2];
};
// The number of elements in the widest memory access.
template <typename T>
inline constexpr int kPack = kAccessBytes / static_cast<int>(sizeof(T));

template <typename T, int N>
using Access = base::CudaWord<static_cast<int>(sizeof(T)) * N>;

// Loads elements first .. first + N - 1 of the `count` elements of `data`. Elements from `count` on are 0. If kWhole is
// true, one memory access is used. Then data + first must be aligned to the size of the pack, and `count` must be a
// multiple of N.
template <bool kWhole, int N, typename T>
__device__ __forceinline__ Pack<T, N> load_pack(const T* data, std::int64_t first, std::int64_t count) {
  if constexpr (kWhole) {
    Access<T, N> words{};
    if (first < count) words = *reinterpret_cast<const Access<T, N>*>(data + first);
    return std::bit_cast<Pack<T, N>>(words);
  } else {
    Pack<T, N> pack;
#pragma unroll
    for (int i = 0; i < N; ++i) pack.set(i, first + i < count ? data[first + i] : T{});
    return pack;
  }
}
template <bool kWhole, int N, typename T>
__device__ __forceinline__ void store_pack(T* data, std::int64_t first, std::int64_t count, const Pack<T, N>& pack) {
  if constexpr (kWhole) {
    if (first < count) *reinterpret_cast<Access<T, N>*>(data + first) = std::bit_cast<Access<T, N>>(pack);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (first + i < count) data[first + i] = pack.get(i);
  }
}
// Like store_pack, for a flat range whose last pack may be incomplete.
template <bool kAligned, int N, typename T>
__device__ __forceinline__ void store_flat(T* data, std::int64_t first, std::int64_t count, const Pack<T, N>& pack) {
  if (kAligned && first + N <= count)
    store_pack<true>(data, first, count, pack);
  else
    store_pack<false>(data, first, count, pack);
}

// Rounds each value of the arithmetic type once to T.
template <typename T, int N, typename A>
__device__ __forceinline__ Pack<T, N> rounded(const A (&values)[N]) {
  Pack<T, N> pack;
  if constexpr (std::is_same_v<T, quant::bfloat16> && std::is_same_v<A, float> && N % 2 == 0) {
#pragma unroll
    for (int i = 0; i < N; i += 2) pack.set_pair(i, values[i], values[i + 1]);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) pack.set(i, round_to<T>(values[i]));
  }
  return pack;
}

// Returns the sum over the lanes of the warp, in every lane.
template <typename A>
__device__ __forceinline__ A warp_sum(A value) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(~0u, value, distance);
  return value;
}
// Returns the sum over the threads of the block, in every thread. `scratch` holds one element per warp. Another sum may
// use `scratch` only after all threads have passed a barrier.
template <typename A>
__device__ __forceinline__ A block_sum(A value, A* scratch) {
  value = warp_sum(value);
  if (blockDim.x <= kWarp) return value;
  if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp] = value;
  __syncthreads();
  return warp_sum(threadIdx.x % kWarp < blockDim.x / kWarp ? scratch[threadIdx.x % kWarp] : A{0});
}

// Computes the quotient n / value for 0 <= n < 2^31 with a multiplication instead of a division (Granlund & Montgomery
// 1994).
class Divisor {
 public:
  explicit Divisor(std::int64_t value) : value_(static_cast<std::uint32_t>(value)) {
    while ((std::uint64_t{1} << shift_) < value_) ++shift_;
    factor_ =
        static_cast<std::uint32_t>(((std::uint64_t{1} << 32) * ((std::uint64_t{1} << shift_) - value_)) / value_ + 1);
  }
  __device__ __forceinline__ std::uint32_t quotient(std::uint32_t n) const {
    return (__umulhi(n, factor_) + n) >> shift_;
  }
  __device__ __forceinline__ std::uint32_t remainder(std::uint32_t n, std::uint32_t quotient) const {
    return n - quotient * value_;
  }

 private:
  std::uint32_t value_, factor_ = 0, shift_ = 0;
};

inline void check_launch(const char* what) {
  base::check_cuda(cudaGetLastError(), what);
}

using base::blocks_for, base::ceil_div, base::is_aligned;
// Returns the number of threads of a block that processes one row. The row has `packs` packs, and each thread processes
// `per_thread` of them.
inline unsigned row_threads(std::int64_t packs, std::int64_t per_thread, std::int64_t limit) {
  return static_cast<unsigned>(
      std::clamp<std::int64_t>(ceil_div(ceil_div(packs, per_thread), kWarp) * kWarp, kWarp, limit));
}

// Returns true if the rows of all these dense matrices consist of whole, aligned packs. A row has `cols` elements of T.
// Null pointers are ignored.
template <typename T, typename... Pointers>
bool rows_whole(std::int64_t cols, Pointers... pointers) {
  return cols % kPack<T> == 0 && (is_aligned(pointers, kAccessBytes) && ...);
}
// Calls function(std::true_type{}) if `value` is true, otherwise function(std::false_type{}).
template <typename Function>
void dispatch_bool(bool value, Function&& function) {
  if (value) return function(std::true_type{});
  function(std::false_type{});
}

// Launches a kernel that may start while the previous kernel of the stream still runs. The kernel must call
// cudaGridDependencySynchronize() before it reads results of the previous kernel.
template <typename... Parameters, typename... Arguments>
void launch_early(void (*kernel)(Parameters...), dim3 grid, dim3 block, base::CudaStream stream,
                  Arguments... arguments) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  base::check_cuda(cudaLaunchKernelEx(&config, kernel, arguments...), "launch");
}

}  // namespace tessera::ops::cuda
