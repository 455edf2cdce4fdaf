// Computes the amaxes of matrices, and the multipliers of delayed scaling from these amaxes.
#include "tessera/quant/cuda/quantize_cuda.h"
#include "tessera/quant/cuda/weight_list.cuh"

namespace tessera::quant::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kVectorsAtOnce = 4;  // vectors of a thread whose loads are in flight together
constexpr int kRounds = 4;         // number of rounds of loads in a block
constexpr std::int64_t kChunk = kThreads * kVector * kVectorsAtOnce * kRounds;  // number of elements of a block

struct Item {
  const void* source;
  std::int64_t elements;
  float* amax;
  bool wide;     // whether the elements are fp32 instead of bf16
  bool aligned;  // whether every vector begins at a multiple of 16 bytes
};
using List = WeightList<Item>;

template <typename T>
__device__ float greatest_of_chunk(const Item& item, std::int64_t begin) {
  const T* source = static_cast<const T*>(item.source);
  const std::int64_t end = min(begin + kChunk, item.elements);
  float greatest = 0;
  if (item.aligned && end - begin == kChunk) {
    const T* from = source + begin + static_cast<std::int64_t>(threadIdx.x) * kVector;
#pragma unroll 1
    for (int round = 0; round < kRounds; ++round) {
      float values[kVectorsAtOnce][kVector];
#pragma unroll
      for (int k = 0; k < kVectorsAtOnce; ++k) load_vector(from + k * kThreads * kVector, values[k]);
      from += kVectorsAtOnce * kThreads * kVector;
#pragma unroll
      for (int k = 0; k < kVectorsAtOnce; ++k)
#pragma unroll
        for (int i = 0; i < kVector; ++i) greatest = fmaxf(greatest, fabsf(values[k][i]));
    }
  } else {
    for (std::int64_t i = begin + threadIdx.x; i < end; i += kThreads)
      greatest = fmaxf(greatest, fabsf(static_cast<float>(source[i])));
  }
  return greatest;
}

__global__ void __launch_bounds__(kThreads) take_chunks(const __grid_constant__ List list) {
  __shared__ float scratch[kThreads / 32];
  const int number = list.item_of(blockIdx.x);
  const Item& item = list.items[number];
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x - list.first_block[number]) * kChunk;
  const float own = item.wide ? greatest_of_chunk<float>(item, begin) : greatest_of_chunk<bfloat16>(item, begin);
  const float greatest = block_greatest(own, scratch);
  if (threadIdx.x == 0) raise(item.amax, rounded_to_bfloat16(greatest));
}

Item item_of(const AmaxTask& task) {
  if (task.source.type != DType::bf16 && task.source.type != DType::fp32)
    base::fail("take_amaxes: expected bf16 or fp32, got " + std::string(name_of(task.source.type)));
  return {.source = task.source.data,
          .elements = task.elements,
          .amax = task.amax,
          .wide = task.source.type == DType::fp32,
          .aligned = is_aligned(task.source.data, 16)};
}

std::int64_t blocks_of(const Item& item) {
  return pieces_of(item.elements, kChunk);
}

__global__ void make_scale(Encoding encoding, const float* amax, float* multiplier, float* inverse) {
  const TileScale scale = operand_scale(encoding, *amax, 0);
  *multiplier = scale.multiplier;
  *inverse = __uint_as_float(scale.stored);
}

__global__ void __launch_bounds__(kThreads) update_all(const __grid_constant__ DelayedScaling scaling) {
  const std::int64_t tensor = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (tensor < scaling.tensors) update_multiplier(scaling, tensor);
}

}  // namespace

void take_amaxes(std::span<const AmaxTask> matrices, base::CudaStream stream) {
  for_each_list<Item>(matrices, item_of, blocks_of,
                      [&](const List& list, unsigned blocks) { take_chunks<<<blocks, kThreads, 0, stream>>>(list); });
}

void scale_of_amax(const Encoding& encoding, const float* amax, float* multiplier, float* inverse,
                   base::CudaStream stream) {
  make_scale<<<1, 1, 0, stream>>>(encoding, amax, multiplier, inverse);
  TESSERA_CUDA_CHECK(cudaGetLastError());
}

void update_multipliers(const DelayedScaling& scaling, base::CudaStream stream) {
  if (scaling.tensors == 0) return;
  const unsigned blocks = checked_blocks(pieces_of(scaling.tensors, kThreads));
  update_all<<<blocks, kThreads, 0, stream>>>(scaling);
  TESSERA_CUDA_CHECK(cudaGetLastError());
}

}  // namespace tessera::quant::cuda
