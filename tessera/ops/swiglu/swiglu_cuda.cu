#include "tessera/ops/swiglu/swiglu_kernels.h"
#include "tessera/ops/swiglu/swiglu_packs.cuh"

namespace tessera::ops::cuda {
namespace {

constexpr int kThreads = 256, kSteps = 2;               // packs per thread
constexpr std::int64_t kItems = std::int64_t{1} << 30;  // packs of a launch, limited by Divisor

template <typename T>
struct Rows {
  const T* gate_up;
  const T* dout;  // only in backward
  T* result;
  T* output;  // only in backward: the kernel writes `out` to this address unless it is null
  std::int64_t features;
  std::uint32_t items;
  Divisor packs;  // number of packs of the features of a row
};

// The position of pack `item`.
struct Place {
  std::int64_t token, first;
};
template <typename T>
__device__ __forceinline__ Place place_of(const Rows<T>& rows, std::uint32_t item) {
  const std::uint32_t token = rows.packs.quotient(item);
  return {token, std::int64_t{rows.packs.remainder(item, token)} * kPack<T>};
}

template <bool kWhole, typename T>
__global__ void __launch_bounds__(kThreads) forward(const Rows<T> rows) {
  constexpr int N = kPack<T>;
  const std::uint32_t start = blockIdx.x * kSteps * kThreads + threadIdx.x;
  Pack<T, N> gate[kSteps], up[kSteps];
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    if (start + i * kThreads >= rows.items) break;
    const Place place = place_of(rows, start + i * kThreads);
    const T* row = rows.gate_up + place.token * 2 * rows.features;
    gate[i] = load_pack<kWhole, N>(row, place.first, rows.features);
    up[i] = load_pack<kWhole, N>(row + rows.features, place.first, rows.features);
  }
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    if (start + i * kThreads >= rows.items) break;
    const Place place = place_of(rows, start + i * kThreads);
    store_pack<kWhole>(rows.result + place.token * rows.features, place.first, rows.features,
                       swiglu_of(gate[i], up[i]));
  }
}

template <bool kWhole, bool kWithOutput, typename T>
__global__ void __launch_bounds__(kThreads) backward(const Rows<T> rows) {
  constexpr int N = kPack<T>;
  const std::uint32_t start = blockIdx.x * kSteps * kThreads + threadIdx.x;
  Pack<T, N> gate[kSteps], up[kSteps], dout[kSteps];
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    if (start + i * kThreads >= rows.items) break;
    const Place place = place_of(rows, start + i * kThreads);
    const T* row = rows.gate_up + place.token * 2 * rows.features;
    gate[i] = load_pack<kWhole, N>(row, place.first, rows.features);
    up[i] = load_pack<kWhole, N>(row + rows.features, place.first, rows.features);
    dout[i] = load_pack<kWhole, N>(rows.dout + place.token * rows.features, place.first, rows.features);
  }
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    if (start + i * kThreads >= rows.items) break;
    const Place place = place_of(rows, start + i * kThreads);
    const SwigluPacks<T, N> packs = swiglu_gradient_of<kWithOutput>(gate[i], up[i], dout[i]);
    T* row = rows.result + place.token * 2 * rows.features;
    store_pack<kWhole>(row, place.first, rows.features, packs.dgate);
    store_pack<kWhole>(row + rows.features, place.first, rows.features, packs.dup);
    if constexpr (kWithOutput)
      store_pack<kWhole>(rows.output + place.token * rows.features, place.first, rows.features, packs.out);
  }
}

// Calls launch(whole, rows, blocks) for groups of tokens that fit into one launch.
template <typename Launch>
void over_tokens(const SwigluArguments& a, Launch&& launch) {
  if (a.features == 0) return;
  dispatch_floating(a.type, [&](auto element) {
    using T = decltype(element);
    const std::int64_t packs = ceil_div(a.features, kPack<T>), most = std::max<std::int64_t>(1, kItems / packs);
    for (std::int64_t token = 0; token < a.tokens; token += most) {
      const std::int64_t items = std::min(most, a.tokens - token) * packs;
      const std::int64_t result_cols = a.dout == nullptr ? a.features : 2 * a.features;
      const Rows<T> rows{.gate_up = static_cast<const T*>(a.gate_up) + token * 2 * a.features,
                         .dout = a.dout == nullptr ? nullptr : static_cast<const T*>(a.dout) + token * a.features,
                         .result = static_cast<T*>(a.result) + token * result_cols,
                         .output = a.output == nullptr ? nullptr : static_cast<T*>(a.output) + token * a.features,
                         .features = a.features,
                         .items = static_cast<std::uint32_t>(items),
                         .packs = Divisor(packs)};
      dispatch_bool(rows_whole<T>(a.features, a.gate_up, a.dout, a.result, a.output),
                    [&](auto whole) { launch(whole, rows, blocks_for(items, kThreads * kSteps)); });
    }
  });
}

}  // namespace

void swiglu_forward(const SwigluArguments& a, base::CudaStream stream) {
  over_tokens(a, [stream](auto whole, const auto& rows, unsigned blocks) {
    forward<decltype(whole)::value><<<blocks, kThreads, 0, stream>>>(rows);
  });
  check_launch("swiglu_forward");
}

void swiglu_backward(const SwigluArguments& a, base::CudaStream stream) {
  over_tokens(a, [stream](auto whole, const auto& rows, unsigned blocks) {
    dispatch_bool(rows.output != nullptr, [&](auto output) {
      backward<decltype(whole)::value, decltype(output)::value><<<blocks, kThreads, 0, stream>>>(rows);
    });
  });
  check_launch("swiglu_backward");
}

}  // namespace tessera::ops::cuda
