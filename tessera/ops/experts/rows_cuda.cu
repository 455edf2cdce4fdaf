// Orders the rows of the local experts, and moves values between tokens and rows. The host does not know the number of
// rows.
//
// The rows are ordered by expert and token with a counting sort. Each thread block counts the choices of kChunk tokens
// by expert. One thread block adds the counts in the order of the rows. Each thread block then numbers the rows of its
// tokens.
#include "tessera/ops/experts/experts_kernels.h"
#include "tessera/ops/packs.cuh"

namespace tessera::ops::cuda {
namespace {

constexpr int kChunk = 256,
              kWords = kChunk /
                       kWarp;  // kChunk: tokens of a chunk. kWords: 32-bit words with one bit for each token of a chunk
constexpr int kScanThreads = 1024, kMoveThreads = 256;

// Sets bit t of bits[e] if token t of the chunk chooses local expert e.
__device__ void mark_choices(const SelectRowsArguments& a, std::uint32_t (*bits)[kWords]) {
  std::uint32_t* words = &bits[0][0];
  for (int i = threadIdx.x; i < a.local * kWords; i += kChunk) words[i] = 0;
  __syncthreads();
  const std::int64_t token = std::int64_t{blockIdx.x} * kChunk + threadIdx.x;
  if (token < a.tokens)
    for (int slot = 0; slot < a.k; ++slot) {
      const std::int64_t expert = a.choices[token * a.k + slot] - a.first;
      if (expert >= 0 && expert < a.local)
        atomicOr(&bits[expert][threadIdx.x / kWarp],
                 1u << (threadIdx.x % kWarp));  // the order of these operations does not matter
    }
  __syncthreads();
}

// a.counts: [local, chunks].
__global__ void __launch_bounds__(kChunk) count_choices(const SelectRowsArguments a) {
  extern __shared__ std::uint32_t memory[];
  auto* bits = reinterpret_cast<std::uint32_t(*)[kWords]>(memory);
  mark_choices(a, bits);
  for (int expert = threadIdx.x; expert < a.local; expert += kChunk) {
    int count = 0;
    for (int word = 0; word < kWords; ++word) count += __popc(bits[expert][word]);
    a.counts[std::int64_t{expert} * gridDim.x + blockIdx.x] = count;
  }
}

// Replaces each count by the sum of the counts before it, and writes the ends of the experts. Launched as one thread
// block.
__global__ void __launch_bounds__(kScanThreads) first_rows(const SelectRowsArguments a, std::int64_t chunks) {
  __shared__ std::int32_t sums[kScanThreads];
  const std::int64_t count = a.local * chunks, each = (count + kScanThreads - 1) / kScanThreads;
  const std::int64_t begin = min(count, threadIdx.x * each), end = min(count, begin + each);
  std::int32_t sum = 0;
  for (std::int64_t i = begin; i < end; ++i) sum += a.counts[i];
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (int distance = 1; distance < kScanThreads; distance *= 2) {
    const std::int32_t before = threadIdx.x >= distance ? sums[threadIdx.x - distance] : 0;
    __syncthreads();
    sums[threadIdx.x] += before;
    __syncthreads();
  }
  std::int32_t next = sums[threadIdx.x] - sum;
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int32_t own = a.counts[i];
    a.counts[i] = next;
    next += own;
    if (i % chunks == chunks - 1) a.ends[i / chunks] = static_cast<std::int32_t>(min(std::int64_t{next}, a.room));
  }
  if (threadIdx.x != kScanThreads - 1 || next <= a.room) return;
  if (a.overflows != nullptr) *a.overflows += 1;
  if (a.needed != nullptr) *a.needed = fmax(*a.needed, static_cast<double>(next) / static_cast<double>(a.expected));
}

// Writes the ends of one expert's rows in each block. A thread block processes one expert. The first row of each chunk
// is known, and the rows between the chunk and the end of the block are counted.
__global__ void __launch_bounds__(kChunk) find_block_ends(const SelectRowsArguments a, std::int64_t chunks) {
  const std::int64_t expert = blockIdx.x, length = a.tokens / a.blocks;
  std::int32_t* ends = a.block_ends + expert * a.blocks;
  for (std::int64_t block = 0; block + 1 < a.blocks; ++block) {
    const std::int64_t end = (block + 1) * length, chunk = end / kChunk, token = chunk * kChunk + threadIdx.x;
    bool chooses = false;
    if (token < end)
      for (int slot = 0; slot < a.k; ++slot) chooses |= a.choices[token * a.k + slot] - a.first == expert;
    const std::int64_t counted = __syncthreads_count(chooses);
    const std::int64_t row = a.counts[expert * chunks + chunk] + counted;
    if (threadIdx.x == 0) ends[block] = static_cast<std::int32_t>(min(row, a.room));
  }
  if (threadIdx.x == 0) ends[a.blocks - 1] = a.ends[expert];
}

__global__ void __launch_bounds__(kChunk) number_rows(const SelectRowsArguments a) {
  extern __shared__ std::uint32_t memory[];
  auto* bits = reinterpret_cast<std::uint32_t(*)[kWords]>(memory);
  mark_choices(a, bits);
  const std::int64_t token = std::int64_t{blockIdx.x} * kChunk + threadIdx.x;
  if (token >= a.tokens) return;
  const int own = threadIdx.x / kWarp;
  const std::uint32_t lower = (1u << (threadIdx.x % kWarp)) - 1;
  std::int32_t* in_order = a.rows_in_order + token * a.k;
  int used = 0;
  for (int slot = 0; slot < a.k; ++slot) {
    const std::int64_t expert = a.choices[token * a.k + slot] - a.first;
    std::int32_t row = -1;
    if (expert >= 0 && expert < a.local) {
      row = a.counts[expert * gridDim.x + blockIdx.x] + __popc(bits[expert][own] & lower);
      for (int word = 0; word < own; ++word) row += __popc(bits[expert][word]);
      if (row >= a.room) row = -1;
    }
    a.rows_by_slot[token * a.k + slot] = row;
    if (row < 0) continue;
    a.row_tokens[row] = static_cast<std::int32_t>(token);
    int at = used++;
    for (; at > 0 && in_order[at - 1] > row; --at) in_order[at] = in_order[at - 1];
    in_order[at] = row;
  }
  for (; used < a.k; ++used) in_order[used] = -1;
}

// Each thread block processes one token.
template <bool kWhole, typename T>
__global__ void __launch_bounds__(kMoveThreads)
    copy_to_rows(const T* __restrict__ x, T* __restrict__ rows, const std::int32_t* __restrict__ rows_in_order, int k,
                 std::int64_t width) {
  constexpr int N = kPack<T>;
  const std::int64_t token = blockIdx.x;
  const std::int32_t* own = rows_in_order + token * k;
  if (own[0] < 0) return;
  for (std::int64_t first = std::int64_t{threadIdx.x} * N; first < width; first += std::int64_t{blockDim.x} * N) {
    const Pack<T, N> pack = load_pack<kWhole, N>(x + token * width, first, width);
    for (int i = 0; i < k; ++i) {
      const std::int32_t row = own[i];
      if (row < 0) break;
      store_pack<kWhole>(rows + row * width, first, width, pack);
    }
  }
}

template <bool kWhole, typename T>
__global__ void __launch_bounds__(kMoveThreads)
    sum_rows(const T* __restrict__ rows, T* __restrict__ result, const std::int32_t* __restrict__ rows_in_order, int k,
             std::int64_t width) {
  constexpr int N = kPack<T>, kAtOnce = 4;
  const std::int64_t token = blockIdx.x;
  const std::int32_t* own = rows_in_order + token * k;
  for (std::int64_t first = std::int64_t{threadIdx.x} * N; first < width; first += std::int64_t{blockDim.x} * N) {
    Accumulator<T> sums[N] = {};
    for (int begin = 0; begin < k && own[begin] >= 0; begin += kAtOnce) {
      Pack<T, N> packs[kAtOnce];
      bool exists[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const std::int32_t row = begin + i < k ? own[begin + i] : -1;
        exists[i] = row >= 0;
        if (exists[i]) packs[i] = load_pack<kWhole, N>(rows + row * width, first, width);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (!exists[i]) break;
#pragma unroll
        for (int j = 0; j < N; ++j) sums[j] += packs[i][j];
      }
    }
    store_pack<kWhole>(result + token * width, first, width, rounded<T>(sums));
  }
}

template <bool kToRows, typename A>
__global__ void __launch_bounds__(kMoveThreads)
    move_choices(const A* __restrict__ from, A* __restrict__ to, const std::int32_t* __restrict__ rows_by_slot,
                 std::int64_t choices) {
  const std::int64_t choice = std::int64_t{blockIdx.x} * kMoveThreads + threadIdx.x;
  if (choice >= choices) return;
  const std::int32_t row = rows_by_slot[choice];
  if constexpr (kToRows) {
    if (row >= 0) to[row] = from[choice];
  } else {
    to[choice] = row >= 0 ? from[row] : A{0};
  }
}

template <typename Launch>
void over_rows(const MoveRowsArguments& a, Launch&& launch) {
  if (a.tokens == 0 || a.width == 0) return;
  dispatch_floating(a.type, [&](auto element) {
    using T = decltype(element);
    dispatch_bool(rows_whole<T>(a.width, a.from, a.to), [&](auto whole) {
      launch(whole, static_cast<const T*>(a.from), static_cast<T*>(a.to), blocks_for(a.tokens, 1),
             row_threads(ceil_div(a.width, kPack<T>), 1, kMoveThreads));
    });
  });
}

}  // namespace

std::int64_t select_rows_scratch(std::int64_t tokens, std::int64_t local) {
  return ceil_div(tokens, kChunk) * local;
}

void select_rows(const SelectRowsArguments& a, base::CudaStream stream) {
  const std::int64_t chunks = ceil_div(a.tokens, kChunk);
  const std::size_t bytes = static_cast<std::size_t>(a.local * kWords) * sizeof(std::uint32_t);
  if (chunks == 0) {
    base::check_cuda(cudaMemsetAsync(a.ends, 0, static_cast<std::size_t>(a.local) * sizeof *a.ends, stream), "select");
    base::check_cuda(
        cudaMemsetAsync(a.block_ends, 0, static_cast<std::size_t>(a.local * a.blocks) * sizeof *a.block_ends, stream),
        "select");
    return;
  }
  const auto blocks = static_cast<unsigned>(chunks);
  if (a.local > 0) {
    count_choices<<<blocks, kChunk, bytes, stream>>>(a);
    first_rows<<<1, kScanThreads, 0, stream>>>(a, chunks);
    if (a.blocks > 1) find_block_ends<<<static_cast<unsigned>(a.local), kChunk, 0, stream>>>(a, chunks);
  }
  number_rows<<<blocks, kChunk, bytes, stream>>>(a);
  check_launch("select_rows");
}

void take_rows(const MoveRowsArguments& a, base::CudaStream stream) {
  over_rows(a, [&](auto whole, const auto* from, auto* to, unsigned blocks, unsigned threads) {
    copy_to_rows<decltype(whole)::value>
        <<<blocks, threads, 0, stream>>>(from, to, a.rows_in_order, static_cast<int>(a.k), a.width);
  });
  check_launch("take_rows");
}

void combine_rows(const MoveRowsArguments& a, base::CudaStream stream) {
  over_rows(a, [&](auto whole, const auto* from, auto* to, unsigned blocks, unsigned threads) {
    sum_rows<decltype(whole)::value>
        <<<blocks, threads, 0, stream>>>(from, to, a.rows_in_order, static_cast<int>(a.k), a.width);
  });
  check_launch("combine_rows");
}

namespace {

template <bool kToRows>
void launch_choices(const MoveChoicesArguments& a, base::CudaStream stream) {
  if (a.choices == 0) return;
  dispatch_accumulator(a.type, [&](auto element) {
    using A = decltype(element);
    move_choices<kToRows, A><<<blocks_for(a.choices, kMoveThreads), kMoveThreads, 0, stream>>>(
        static_cast<const A*>(a.from), static_cast<A*>(a.to), a.rows_by_slot, a.choices);
  });
  check_launch("choices of experts");
}

}  // namespace

void take_choices(const MoveChoicesArguments& a, base::CudaStream stream) {
  launch_choices<true>(a, stream);
}

void put_choices(const MoveChoicesArguments& a, base::CudaStream stream) {
  launch_choices<false>(a, stream);
}

}  // namespace tessera::ops::cuda
