// SwiGLU of expert rows with their routing weights. The kernels read the number of rows from device memory, and threads
// of unused rows return at once. Each element has the same bits as on a CPU. The order of the sum over a row depends
// only on the length of the row.
#include "tessera/ops/experts/experts_kernels.h"
#include "tessera/ops/swiglu/swiglu_packs.cuh"

namespace tessera::ops::cuda {
namespace {

constexpr int kThreads = 256, kSteps = 2;               // kSteps: packs of each thread in forward
constexpr std::int64_t kItems = std::int64_t{1} << 30;  // packs of a launch; Divisor limits the number

template <typename T>
struct Rows {
  const std::int32_t* rows;
  std::int64_t first;  // first row that the launch computes
  const T *gate_up, *dout;
  const Accumulator<T>* weights;
  T *result, *output;
  Accumulator<T>* dweights;
  std::int64_t features;
  std::uint32_t items;
  Divisor packs;  // divides by the number of packs in a row
};

// Computes silu(gate) * up * weight.
template <typename T, int N>
__device__ __forceinline__ Pack<T, N> weighted(const Accumulator<T> (&g)[N], const Accumulator<T> (&s)[N],
                                               const Pack<T, N>& up, Accumulator<T> weight) {
  Accumulator<T> out[N];
#pragma unroll
  for (int i = 0; i < N; ++i) out[i] = g[i] * s[i] * up[i] * weight;
  return rounded<T>(out);
}

template <bool kWhole, typename T>
__global__ void __launch_bounds__(kThreads) forward(const Rows<T> a) {
  constexpr int N = kPack<T>;
  const std::uint32_t start = blockIdx.x * kSteps * kThreads + threadIdx.x;
  const std::int64_t rows = *a.rows;
  Pack<T, N> gate[kSteps], up[kSteps];
  std::int64_t row[kSteps], first[kSteps];
  bool exists[kSteps];
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    const std::uint32_t item = start + i * kThreads, quotient = a.packs.quotient(item < a.items ? item : 0);
    row[i] = a.first + quotient;
    first[i] = std::int64_t{a.packs.remainder(item, quotient)} * N;
    exists[i] = item < a.items && row[i] < rows;
    if (!exists[i]) continue;
    const T* from = a.gate_up + row[i] * 2 * a.features;
    gate[i] = load_pack<kWhole, N>(from, first[i], a.features);
    up[i] = load_pack<kWhole, N>(from + a.features, first[i], a.features);
  }
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    if (!exists[i]) continue;
    Accumulator<T> g[N], s[N];
#pragma unroll
    for (int j = 0; j < N; ++j) g[j] = gate[i][j];
    sigmoids(g, s);
    store_pack<kWhole>(a.result + row[i] * a.features, first[i], a.features,
                       weighted<T, N>(g, s, up[i], a.weights[row[i]]));
  }
}

// Each thread block processes one row.
template <bool kWhole, bool kWithOutput, typename T>
__global__ void __launch_bounds__(kThreads) backward(const Rows<T> a) {
  using A = Accumulator<T>;
  constexpr int N = kPack<T>;
  __shared__ A scratch[kWarp];
  const std::int64_t row = blockIdx.x;
  if (row >= *a.rows) return;
  const A weight = a.weights[row];
  const T* from = a.gate_up + row * 2 * a.features;
  T* to = a.result + row * 2 * a.features;
  A sum = 0;
  for (std::int64_t first = std::int64_t{threadIdx.x} * N; first < a.features; first += std::int64_t{blockDim.x} * N) {
    const Pack<T, N> gate = load_pack<kWhole, N>(from, first, a.features),
                     up = load_pack<kWhole, N>(from + a.features, first, a.features),
                     dout = load_pack<kWhole, N>(a.dout + row * a.features, first, a.features);
    A dgate[N], dup[N], g[N], s[N];
#pragma unroll
    for (int i = 0; i < N; ++i) g[i] = gate[i];
    sigmoids(g, s);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const A d = dout[i] * weight;
      dgate[i] = d * up[i] * s[i] * (A{1} + g[i] * (A{1} - s[i]));
      dup[i] = d * g[i] * s[i];
      if (kWhole || first + i < a.features) sum += dout[i] * (g[i] * s[i] * up[i]);
    }
    store_pack<kWhole>(to, first, a.features, rounded<T>(dgate));
    store_pack<kWhole>(to + a.features, first, a.features, rounded<T>(dup));
    if constexpr (kWithOutput)
      store_pack<kWhole>(a.output + row * a.features, first, a.features, weighted<T, N>(g, s, up, weight));
  }
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) a.dweights[row] = sum;
}

template <typename T>
Rows<T> rows_of(const WeightedSwigluArguments& a, std::int64_t packs) {
  return {.rows = a.rows,
          .first = 0,
          .gate_up = static_cast<const T*>(a.gate_up),
          .dout = static_cast<const T*>(a.dout),
          .weights = static_cast<const Accumulator<T>*>(a.weights),
          .result = static_cast<T*>(a.result),
          .output = static_cast<T*>(a.output),
          .dweights = static_cast<Accumulator<T>*>(a.dweights),
          .features = a.features,
          .items = 0,
          .packs = Divisor(std::max<std::int64_t>(packs, 1))};
}

}  // namespace

void weighted_swiglu(const WeightedSwigluArguments& a, base::CudaStream stream) {
  if (a.features == 0) return;
  dispatch_floating(a.type, [&](auto element) {
    using T = decltype(element);
    const std::int64_t packs = ceil_div(a.features, kPack<T>), most = std::max<std::int64_t>(1, kItems / packs);
    Rows<T> rows = rows_of<T>(a, packs);
    for (; rows.first < a.room; rows.first += most) {
      rows.items = static_cast<std::uint32_t>(std::min(most, a.room - rows.first) * packs);
      dispatch_bool(rows_whole<T>(a.features, a.gate_up, a.result), [&](auto whole) {
        forward<decltype(whole)::value><<<blocks_for(rows.items, kThreads * kSteps), kThreads, 0, stream>>>(rows);
      });
    }
  });
  check_launch("weighted_swiglu");
}

void weighted_swiglu_backward(const WeightedSwigluArguments& a, base::CudaStream stream) {
  if (a.room == 0) return;
  dispatch_floating(a.type, [&](auto element) {
    using T = decltype(element);
    const std::int64_t packs = ceil_div(a.features, kPack<T>);
    const Rows<T> rows = rows_of<T>(a, packs);
    const unsigned threads = row_threads(packs, 1, kThreads);
    dispatch_bool(rows_whole<T>(a.features, a.gate_up, a.dout, a.result, a.output), [&](auto whole) {
      dispatch_bool(a.output != nullptr, [&](auto output) {
        backward<decltype(whole)::value, decltype(output)::value><<<blocks_for(a.room, 1), threads, 0, stream>>>(rows);
      });
    });
  });
  check_launch("weighted_swiglu_backward");
}

}  // namespace tessera::ops::cuda
