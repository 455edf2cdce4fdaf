// Device code that the kernels of number formats share: loads of vectors from a matrix row, and amaxes of a block.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "tessera/base/cuda_check.h"
#include "tessera/quant/cuda/tiling.h"
#include "tessera/quant/cuda/vector_codes.h"

namespace tessera::quant::cuda {

inline constexpr unsigned kAllLanes = 0xFFFFFFFFU;

// The matrix position of this thread's first element in a piece (tiling.h). A thread has kWarpRows rows of kVector
// columns.
struct Place {
  std::int64_t row = 0, col = 0;
};
__device__ inline Place place_in_piece(std::int64_t piece, std::int64_t pieces_across, std::int64_t first_row) {
  return {
      .row = first_row + piece / pieces_across * kPieceRows + static_cast<std::int64_t>(threadIdx.x / 32) * kWarpRows,
      .col = piece % pieces_across * kPieceCols + static_cast<std::int64_t>(threadIdx.x % 32) * kVector};
}

// Loads kVector elements from an address that is a multiple of 16 bytes. The memory must not be written while the
// kernel runs.
__device__ inline void load_vector(const float* from, float (&values)[kVector]) {
  const float4 low = __ldg(reinterpret_cast<const float4*>(from));
  const float4 high = __ldg(reinterpret_cast<const float4*>(from) + 1);
  values[0] = low.x, values[1] = low.y, values[2] = low.z, values[3] = low.w;
  values[4] = high.x, values[5] = high.y, values[6] = high.z, values[7] = high.w;
}
__device__ inline void unpack(const uint4& words, float (&values)[kVector]) {
  values[0] = low_half(words.x), values[1] = high_half(words.x);
  values[2] = low_half(words.y), values[3] = high_half(words.y);
  values[4] = low_half(words.z), values[5] = high_half(words.z);
  values[6] = low_half(words.w), values[7] = high_half(words.w);
}
__device__ inline void load_vector(const bfloat16* from, float (&values)[kVector]) {
  unpack(__ldg(reinterpret_cast<const uint4*>(from)), values);
}

// Rounds the values to bf16 if the source type T is wider.
template <typename T>
__device__ void round_vector(float (&values)[kVector]) {
  if constexpr (sizeof(T) > sizeof(bfloat16)) {
#pragma unroll
    for (int i = 0; i < kVector; i += 2) {
      const std::uint32_t pair = round_pair(values[i], values[i + 1]);
      values[i] = low_half(pair);
      values[i + 1] = high_half(pair);
    }
  }
}
__device__ inline float rounded_to_bfloat16(float value) {
  return low_half(round_pair(value, 0));
}

// Loads `count` elements from an address of any alignment; the other elements of the vector are 0.
__device__ inline uint4 load_part(const bfloat16* from, std::int64_t count) {
  std::uint32_t words[4] = {};
#pragma unroll
  for (int i = 0; i < kVector; ++i)
    if (i < count) words[i / 2] |= static_cast<std::uint32_t>(from[i].bits) << (16 * (i % 2));
  return {words[0], words[1], words[2], words[3]};
}

// Stores a vector in one access. The compiler may divide the assignment of a struct into several stores. The kernel
// must not read this memory afterwards.
__device__ inline void store_vector(void* to, const uint4& words) {
#ifdef __CUDA_ARCH__
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(words.x), "r"(words.y), "r"(words.z),
               "r"(words.w));
#else
  *static_cast<uint4*>(to) = words;
#endif
}
__device__ inline void store_vector(void* to, const uint2& words) {
#ifdef __CUDA_ARCH__
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(words.x), "r"(words.y));
#else
  *static_cast<uint2*>(to) = words;
#endif
}

// Atomically raises *amax to `value`. Amaxes are neither negative nor NaN, so they have the same order as their bits.
__device__ inline void raise(float* amax, float value) {
  if (value > 0) atomicMax(reinterpret_cast<int*>(amax), __float_as_int(value));
}

// Returns the greatest `value` of all lanes of the warp, in every lane.
__device__ inline float warp_greatest(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, distance));
  return value;
}

// Returns the greatest `value` of all threads of the block; the result is valid only in the first thread. `scratch`
// holds one float per warp. Contains a barrier.
__device__ inline float block_greatest(float value, float* scratch) {
  value = warp_greatest(value);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x == 0)
    for (unsigned warp = 1; warp < blockDim.x / 32; ++warp) value = fmaxf(value, scratch[warp]);
  return value;
}

using base::is_aligned;

// Returns the number of blocks of a launch. Throws Error if the number exceeds the limit of a launch.
inline unsigned checked_blocks(std::int64_t blocks) {
  if (blocks > 0x7FFFFFFF) base::fail("number formats: expected at most 2147483647 blocks in one launch, got more");
  return static_cast<unsigned>(blocks);
}

}  // namespace tessera::quant::cuda
