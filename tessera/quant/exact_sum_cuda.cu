#include <algorithm>

#include "tessera/base/cuda_check.h"
#include "tessera/quant/cuda/quantize_cuda.h"
#include "tessera/quant/exact_sum.h"

namespace tessera::quant::cuda {
namespace {

// The number of threads of a block that adds. Each thread has its own limbs in shared memory. The limbs of adjacent
// threads are 8 bytes apart, so there are no bank conflicts for any exponents of the values.
constexpr int kAdders = 64;
constexpr std::int64_t kValuesOfAdder = 32, kMaxBlocks = 1024;
constexpr int kCounters = 256;  // number of threads of a block that counts values that are not finite

__device__ void add_to_memory(std::int64_t& target, std::int64_t value) {
  static_assert(sizeof(unsigned long long) == sizeof(std::int64_t));
  atomicAdd(reinterpret_cast<unsigned long long*>(&target), static_cast<unsigned long long>(value));
}

__global__ void __launch_bounds__(kAdders) add_all(const double* values, std::int64_t count, ExactSum* sum) {
  __shared__ std::int64_t limbs[kExactLimbs][kAdders];
  const int own = threadIdx.x;
  for (int i = 0; i < kExactLimbs; ++i) limbs[i][own] = 0;
  const std::int64_t stride = std::int64_t{gridDim.x} * kAdders;
  for (std::int64_t at = std::int64_t{blockIdx.x} * kAdders + own; at < count; at += stride) {
    const double value = values[at];
    if (!std::isfinite(value)) {
      add_to_memory(count_of(*sum, value), 1);
      continue;
    }
    const ExactTerm term = exact_term(value);
    std::int64_t after[3];
    for (int i = 0; i < 3; ++i) after[i] = limbs[term.first + i][own] + term.parts[i];
    for (int i = 0; i < 3; ++i) limbs[term.first + i][own] = after[i];
  }
  __syncthreads();
  for (int i = own; i < kExactLimbs; i += kAdders) {
    std::int64_t total = 0;
    for (int adder = 0; adder < kAdders; ++adder) total += limbs[i][(adder + own) % kAdders];
    if (total != 0) add_to_memory(sum->limbs[i], total);
  }
}

__global__ void __launch_bounds__(kCounters) count_all(const float* values, std::int64_t count, std::int64_t* counter) {
  std::int64_t own = 0;
  for (std::int64_t at = std::int64_t{blockIdx.x} * kCounters + threadIdx.x; at < count;
       at += std::int64_t{gridDim.x} * kCounters)
    own += std::isfinite(values[at]) ? 0 : 1;
  if (own > 0) add_to_memory(*counter, own);
}

__global__ void normalise_one(ExactSum* sum) {
  ExactSum copy = *sum;  // a copy, so that all loads are in flight together
  normalise(copy);
  *sum = copy;
}

__global__ void round_one(const ExactSum* sum, double* total) {
  *total = rounded(*sum);
}

}  // namespace

void add_exactly(const double* values, std::int64_t count, ExactSum* sum, base::CudaStream stream) {
  for (std::int64_t begin = 0; begin < count; begin += kMaxExactAdditions) {
    const std::int64_t now = std::min(count - begin, kMaxExactAdditions);
    const std::int64_t blocks = (now + kAdders * kValuesOfAdder - 1) / (kAdders * kValuesOfAdder);
    add_all<<<static_cast<unsigned>(std::min(blocks, kMaxBlocks)), kAdders, 0, stream>>>(values + begin, now, sum);
    TESSERA_CUDA_CHECK(cudaGetLastError());
    normalise_one<<<1, 1, 0, stream>>>(sum);
    TESSERA_CUDA_CHECK(cudaGetLastError());
  }
}

void count_not_finite(const float* values, std::int64_t count, std::int64_t* counter, base::CudaStream stream) {
  if (count == 0) return;
  const std::int64_t blocks = std::min<std::int64_t>((count + kCounters - 1) / kCounters, kMaxBlocks);
  count_all<<<static_cast<unsigned>(blocks), kCounters, 0, stream>>>(values, count, counter);
  TESSERA_CUDA_CHECK(cudaGetLastError());
}

void round_exactly(const ExactSum* sum, double* total, base::CudaStream stream) {
  round_one<<<1, 1, 0, stream>>>(sum, total);
  TESSERA_CUDA_CHECK(cudaGetLastError());
}

}  // namespace tessera::quant::cuda
