// Backward sorts the tokens by row; tokens with equal rows stay in token order. A warp then adds a run of equal rows in
// order; each lane holds kPacks packs of columns.
#include <cub/device/device_radix_sort.cuh>

#include "tessera/ops/embedding/embedding_kernels.h"
#include "tessera/ops/packs.cuh"

namespace tessera::ops::cuda {
namespace {

constexpr int kLookupThreads = 128, kLookups = 2;  // packs per thread
constexpr int kThreads = 256;
constexpr int kPacks = 2;                               // packs of columns per thread
constexpr int kAhead = 8;                               // rows that a warp loads together
constexpr std::int64_t kItems = std::int64_t{1} << 30;  // largest number of packs of a launch; Divisor limits it
constexpr std::int64_t kAlignment = 256;

template <typename T>
struct Lookup {
  const std::int64_t* ids;
  const T* weight;
  T* y;
  std::int64_t hidden;
  IdRanges part;
  std::uint32_t items;
  Divisor packs;
};

// The ids of all packs of a thread are loaded before the first row.
template <bool kWhole, typename T>
__global__ void __launch_bounds__(kLookupThreads) take_rows(const Lookup<T> a) {
  constexpr int N = kPack<T>;
  const std::uint32_t start = blockIdx.x * kLookups * kLookupThreads + threadIdx.x;
  std::uint32_t tokens[kLookups];
  std::int64_t rows[kLookups], columns[kLookups];
#pragma unroll
  for (int i = 0; i < kLookups; ++i) {
    const std::uint32_t item = start + i * kLookupThreads;
    tokens[i] = a.packs.quotient(item);
    columns[i] = std::int64_t{a.packs.remainder(item, tokens[i])} * N;
    rows[i] = item < a.items ? a.part.row_of(a.ids[tokens[i]]) : -1;
  }
  Pack<T, N> packs[kLookups];
#pragma unroll
  for (int i = 0; i < kLookups; ++i) {
    const bool local = rows[i] >= 0;
    packs[i] = load_pack<kWhole, N>(a.weight + (local ? rows[i] * a.hidden : 0), columns[i], local ? a.hidden : 0);
  }
#pragma unroll
  for (int i = 0; i < kLookups; ++i)
    if (start + i * kLookupThreads < a.items)
      store_pack<kWhole>(a.y + tokens[i] * a.hidden, columns[i], a.hidden, packs[i]);
}

// A token's row, or `vocabulary` if the token is not in the part, and the token's index.
struct Keys {
  std::uint32_t *rows, *tokens;
};
__global__ void __launch_bounds__(kThreads) make_keys(const std::int64_t* __restrict__ ids, std::int64_t tokens,
                                                      const IdRanges part, std::int64_t vocabulary, Keys keys) {
  const std::int64_t token = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (token >= tokens) return;
  const std::int64_t row = part.row_of(ids[token]);
  keys.rows[token] = static_cast<std::uint32_t>(row >= 0 ? row : vocabulary);
  keys.tokens[token] = static_cast<std::uint32_t>(token);
}

template <typename T>
struct Runs {
  const std::uint32_t *rows, *tokens;  // both lists are sorted by row
  const T* dy;
  Accumulator<T>* dweight;
  std::int64_t count, hidden, vocabulary;
  bool accumulate;
};
// Adds the rows of dy for the tokens of the first `tokens` lanes, in lane order.
template <bool kWhole, typename T, int N>
__device__ __forceinline__ void add_rows(const Runs<T>& a, std::uint32_t token, int tokens, std::int64_t first,
                                         Accumulator<T> (&sums)[kPacks][N]) {
  for (int i = 0; i < tokens; i += kAhead) {
    Pack<T, N> terms[kAhead][kPacks];
#pragma unroll
    for (int ahead = 0; ahead < kAhead; ++ahead) {
      const std::int64_t row = __shfl_sync(~0u, token, i + ahead);
      if (i + ahead < tokens) {
#pragma unroll
        for (int p = 0; p < kPacks; ++p)
          terms[ahead][p] = load_pack<kWhole, N>(a.dy + row * a.hidden, first + p * kWarp * N, a.hidden);
      }
    }
#pragma unroll
    for (int ahead = 0; ahead < kAhead; ++ahead) {
      if (i + ahead >= tokens) break;
#pragma unroll
      for (int p = 0; p < kPacks; ++p)
#pragma unroll
        for (int k = 0; k < N; ++k) sums[p][k] += terms[ahead][p][k];
    }
  }
}

template <bool kWhole, typename T>
__global__ void __launch_bounds__(kThreads) add_runs(const Runs<T> a) {
  constexpr int N = kPack<Accumulator<T>>;
  using A = Accumulator<T>;
  const int lane = threadIdx.x % kWarp;
  std::int64_t begin = std::int64_t{blockIdx.x} * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (begin >= a.count) return;
  const auto row_at = [&](std::int64_t at) { return at < a.count ? a.rows[at] : ~0u; };
  const auto token_at = [&](std::int64_t at) { return at < a.count ? a.tokens[at] : 0u; };
  std::uint32_t rows = row_at(begin + lane), token = token_at(begin + lane);
  const std::uint32_t before = begin > 0 ? a.rows[begin - 1] : ~0u, row = __shfl_sync(~0u, rows, 0);
  if (row >= a.vocabulary || before == row)
    return;  // the token is not in the part, or is not the first token of its run
  const std::int64_t first = (std::int64_t{blockIdx.y} * kPacks * kWarp + lane) * N;
  A* dweight = a.dweight + row * a.hidden;
  A sums[kPacks][N] = {};
  if (a.accumulate) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const auto given = load_pack<kWhole, N>(dweight, first + p * kWarp * N, a.hidden);
#pragma unroll
      for (int k = 0; k < N; ++k) sums[p][k] = given[k];
    }
  }
  for (;;) {
    const unsigned others = __ballot_sync(~0u, rows != row);
    add_rows<kWhole>(a, token, others == 0 ? kWarp : __ffs(static_cast<int>(others)) - 1, first, sums);
    if (others != 0) break;
    begin += kWarp;
    rows = row_at(begin + lane);
    token = token_at(begin + lane);
  }
#pragma unroll
  for (int p = 0; p < kPacks; ++p) store_pack<kWhole>(dweight, first + p * kWarp * N, a.hidden, rounded<A>(sums[p]));
}

int key_bits(std::int64_t vocabulary) {
  return std::bit_width(static_cast<std::uint64_t>(vocabulary));
}

std::size_t sort_bytes(std::int64_t tokens, std::int64_t vocabulary) {
  std::size_t bytes = 0;
  std::uint32_t* keys = nullptr;
  base::check_cuda(
      cub::DeviceRadixSort::SortPairs(nullptr, bytes, keys, keys, keys, keys, tokens, 0, key_bits(vocabulary)),
      "embedding_backward");
  return bytes;
}

// The layout of the scratch memory.
struct Scratch {
  std::int64_t list, sort;  // bytes of a list of tokens, and of the memory that the sort needs
  explicit Scratch(const EmbeddingArguments& a)
      : list(rounded_up(a.tokens * std::int64_t{sizeof(std::uint32_t)})),
        sort(static_cast<std::int64_t>(sort_bytes(a.tokens, a.vocabulary()))) {}
  std::int64_t bytes() const { return 4 * list + sort; }

 private:
  static std::int64_t rounded_up(std::int64_t bytes) { return ceil_div(bytes, kAlignment) * kAlignment; }
};

}  // namespace

void embedding_forward(const EmbeddingArguments& a, base::CudaStream stream) {
  if (a.hidden == 0) return;
  dispatch_floating(a.type, [&](auto element) {
    using T = decltype(element);
    const std::int64_t packs = ceil_div(a.hidden, kPack<T>), most = std::max<std::int64_t>(1, kItems / packs);
    for (std::int64_t token = 0; token < a.tokens; token += most) {
      const std::int64_t items = std::min(most, a.tokens - token) * packs;
      const Lookup<T> lookup{.ids = a.ids + token,
                             .weight = static_cast<const T*>(a.rows),
                             .y = static_cast<T*>(a.result) + token * a.hidden,
                             .hidden = a.hidden,
                             .part = a.part,
                             .items = static_cast<std::uint32_t>(items),
                             .packs = Divisor(packs)};
      dispatch_bool(rows_whole<T>(a.hidden, a.rows, a.result), [&](auto whole) {
        take_rows<decltype(whole)::value>
            <<<blocks_for(items, kLookupThreads * kLookups), kLookupThreads, 0, stream>>>(lookup);
      });
    }
  });
  check_launch("embedding_forward");
}

std::int64_t embedding_backward_scratch(const EmbeddingArguments& a) {
  return Scratch(a).bytes();
}

void embedding_backward(const EmbeddingArguments& a, const EmbeddingParts& parts, base::CudaStream stream) {
  const std::int64_t vocabulary = a.vocabulary();
  if (a.hidden == 0 || vocabulary == 0) return;
  const Scratch layout(a);
  const auto list = [&](int i) {
    return reinterpret_cast<std::uint32_t*>(static_cast<std::byte*>(parts.scratch) + i * layout.list);
  };
  const Keys given{.rows = list(0), .tokens = list(1)}, sorted{.rows = list(2), .tokens = list(3)};
  if (!parts.accumulate) {
    const auto elements = static_cast<std::size_t>(vocabulary * a.hidden);
    base::check_cuda(cudaMemsetAsync(a.result, 0, elements * quant::size_of(quant::accumulator_of(a.type)), stream),
                     "embedding_backward");
  }
  if (a.tokens == 0) return;
  make_keys<<<blocks_for(a.tokens, kThreads), kThreads, 0, stream>>>(a.ids, a.tokens, a.part, vocabulary, given);
  auto bytes = static_cast<std::size_t>(layout.sort);
  base::check_cuda(cub::DeviceRadixSort::SortPairs(list(4), bytes, given.rows, sorted.rows, given.tokens, sorted.tokens,
                                                   a.tokens, 0, key_bits(vocabulary), stream),
                   "embedding_backward");
  dispatch_floating(a.type, [&](auto element) {
    using T = decltype(element);
    using A = Accumulator<T>;
    const Runs<T> runs{.rows = sorted.rows,
                       .tokens = sorted.tokens,
                       .dy = static_cast<const T*>(a.rows),
                       .dweight = static_cast<A*>(a.result),
                       .count = a.tokens,
                       .hidden = a.hidden,
                       .vocabulary = vocabulary,
                       .accumulate = parts.accumulate};
    const dim3 grid(blocks_for(a.tokens, kThreads / kWarp), blocks_for(a.hidden, kPack<A> * kPacks * kWarp));
    // A pack of dy has as many elements as a pack of the sums, so its alignment differs.
    const bool whole =
        a.hidden % kPack<A> == 0 && is_aligned(a.rows, kPack<A> * sizeof(T)) && is_aligned(a.result, kAccessBytes);
    dispatch_bool(whole,
                  [&](auto is_whole) { add_runs<decltype(is_whole)::value><<<grid, kThreads, 0, stream>>>(runs); });
  });
  check_launch("embedding_backward");
}

}  // namespace tessera::ops::cuda
