// The matrix products of the router in bf16 runs, on tensor cores (split_product.cuh).
#include "tessera/ops/router/router_split.h"
#include "tessera/ops/router/split_product.cuh"

namespace tessera::ops::cuda {
namespace {

constexpr int kPlaneThreads = 256;

std::int64_t stride_of(std::int64_t cols) {
  return ceil_div(cols, kChunk) * kChunk;
}

// Returns the first kParts planes of a number. The planes are cut, not rounded, so they cannot exceed the range of
// bf16. All planes of a number that is not finite but the first are 0.
template <int kParts>
__device__ __forceinline__ void planes_of(float value, std::uint16_t (&planes)[kParts]) {
  if (!isfinite(value)) {
    planes[0] = isnan(value) ? 0x7FFF : static_cast<std::uint16_t>(__float_as_uint(value) >> 16);
#pragma unroll
    for (int i = 1; i < kParts; ++i) planes[i] = 0;
    return;
  }
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    planes[i] = static_cast<std::uint16_t>(__float_as_uint(value) >> 16);
    value -= __uint_as_float(std::uint32_t{planes[i]} << 16);
  }
}

// Writes the planes of a matrix with `chunks` chunks in a row. A bf16 matrix has one plane.
template <int kParts, typename T>
__global__ void __launch_bounds__(kPlaneThreads)
    write_planes(const T* __restrict__ from, std::int64_t rows, std::int64_t cols, std::int64_t chunks,
                 std::uint16_t* __restrict__ to) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kPlaneThreads + threadIdx.x;
  if (i >= rows * chunks) return;
  const std::int64_t row = i / chunks, col = i % chunks * kChunk;
  Pack<quant::bfloat16, kChunk> planes[kParts];
#pragma unroll
  for (int k = 0; k < kChunk; ++k) {
    std::uint16_t values[kParts];
    planes_of(col + k < cols ? load(from[row * cols + col + k]) : 0.0F, values);
#pragma unroll
    for (int plane = 0; plane < kParts; ++plane) {
      quant::bfloat16 value;
      value.bits = values[plane];
      planes[plane].set(k, value);
    }
  }
#pragma unroll
  for (int plane = 0; plane < kParts; ++plane)
    *reinterpret_cast<Access<quant::bfloat16, kChunk>*>(to + (plane * rows * chunks + i) * kChunk) =
        std::bit_cast<Access<quant::bfloat16, kChunk>>(planes[plane]);
}

// Splits matrices into scratch memory, one after the other.
class Splitter {
 public:
  Splitter(void* scratch, base::CudaStream stream) : next_(static_cast<std::uint16_t*>(scratch)), stream_(stream) {}

  Planes split(const void* matrix, std::int64_t rows, std::int64_t cols) {
    return write<3>(static_cast<const float*>(matrix), rows, cols);
  }
  // Returns a bf16 matrix as it is, or a padded copy.
  Planes whole(const void* matrix, std::int64_t rows, std::int64_t cols) {
    if (rows_whole<quant::bfloat16>(cols, matrix))
      return {.data = static_cast<const std::uint16_t*>(matrix), .rows = rows, .stride = cols};
    return write<1>(static_cast<const quant::bfloat16*>(matrix), rows, cols);
  }

 private:
  template <int kParts, typename T>
  Planes write(const T* matrix, std::int64_t rows, std::int64_t cols) {
    const Planes planes{.data = next_, .rows = rows, .stride = stride_of(cols)};
    const std::int64_t chunks = planes.stride / kChunk;
    if (rows * chunks > 0)
      write_planes<kParts>
          <<<blocks_for(rows * chunks, kPlaneThreads), kPlaneThreads, 0, stream_>>>(matrix, rows, cols, chunks, next_);
    next_ += kParts * rows * planes.stride;
    return planes;
  }

  std::uint16_t* next_;
  base::CudaStream stream_;
};

struct SplitProduct {
  Planes left, right;
  std::int64_t rows = 0, cols = 0, inner = 0;
};

template <typename Product, typename Tile>
__global__ void __launch_bounds__(Tile::kThreads) multiply_split(const SplitProduct a, float* __restrict__ result) {
  split_product<Product, Tile>(
      a.left, a.right, a.rows, a.cols, 0, a.inner,
      [&](std::int64_t row, std::int64_t col, float value) { result[row * a.cols + col] = value; });
}
template <typename Product, typename Tile>
__global__ void __launch_bounds__(Tile::kThreads)
    add_split(const SplitProduct a, const quant::bfloat16* __restrict__ addend, quant::bfloat16* __restrict__ result) {
  split_product<Product, Tile>(a.left, a.right, a.rows, a.cols, 0, a.inner,
                               [&](std::int64_t row, std::int64_t col, float value) {
                                 const std::int64_t at = row * a.cols + col;
                                 result[at] = round_to<quant::bfloat16>(load(addend[at]) + value);
                               });
}
// blockIdx.z is the chunk of the inner dimension.
template <typename Product, typename Tile>
__global__ void __launch_bounds__(Tile::kThreads)
    multiply_chunk(const SplitProduct a, std::int64_t chunk, float* __restrict__ parts) {
  const std::int64_t begin = blockIdx.z * chunk;
  float* const part = parts + blockIdx.z * a.rows * a.cols;
  split_product<Product, Tile>(
      a.left, a.right, a.rows, a.cols, begin, min(begin + chunk, a.inner),
      [&](std::int64_t row, std::int64_t col, float value) { part[row * a.cols + col] = value; });
}

template <typename Product, typename Tile, typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), const SplitProduct& a, std::int64_t chunks, base::CudaStream stream,
            Arguments... arguments) {
  constexpr int kBytes = Tile::template kBytes<Product>;
  base::check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
                   "shared memory of a router product");
  const dim3 grid(blocks_for(a.rows, Tile::kRows), blocks_for(a.cols, Tile::kCols), static_cast<unsigned>(chunks));
  kernel<<<grid, Tile::kThreads, kBytes, stream>>>(a, arguments...);
}

constexpr std::int64_t kFewExperts = 16;  // smaller tiles are faster up to this number

// Tiles, which depend only on the number of experts: rows, columns, those of a warp, and the order of both matrices.
using LogitsTile = SplitTile<128, 64, 64, 32, false, false, 2>;
using FewLogitsTile = SplitTile<128, 16, 32, 16, false, false, 2>;
using DgradTile = SplitTile<128, 64, 64, 32, false, true, 1>;
using WgradTile = SplitTile<128, 64, 64, 32, true, true, 2>;
using FewWgradTile = SplitTile<16, 128, 16, 32, true, true, 2>;

}  // namespace

std::int64_t split_scratch(const RouterProductArguments& a) {
  const std::int64_t x = a.tokens * stride_of(a.hidden), w = 3 * a.experts * stride_of(a.hidden),
                     dlogits = 3 * a.tokens * stride_of(a.experts);
  return 2 * (x + w + dlogits);
}

void split_logits(const RouterProductArguments& a, base::CudaStream stream) {
  Splitter splitter(a.scratch, stream);
  const SplitProduct product{.left = splitter.whole(a.x, a.tokens, a.hidden),
                             .right = splitter.split(a.w, a.experts, a.hidden),
                             .rows = a.tokens,
                             .cols = a.experts,
                             .inner = a.hidden};
  auto* const result = static_cast<float*>(a.result);
  using P = Bfloat16ByFloat;
  if (a.experts <= kFewExperts)
    launch<P, FewLogitsTile>(multiply_split<P, FewLogitsTile>, product, 1, stream, result);
  else
    launch<P, LogitsTile>(multiply_split<P, LogitsTile>, product, 1, stream, result);
}

void split_dgrad(const RouterProductArguments& a, base::CudaStream stream) {
  Splitter splitter(a.scratch, stream);
  const SplitProduct product{.left = splitter.split(a.dlogits, a.tokens, a.experts),
                             .right = splitter.split(a.w, a.experts, a.hidden),
                             .rows = a.tokens,
                             .cols = a.hidden,
                             .inner = a.experts};
  launch<FloatByFloat, DgradTile>(add_split<FloatByFloat, DgradTile>, product, 1, stream,
                                  static_cast<const quant::bfloat16*>(a.addend),
                                  static_cast<quant::bfloat16*>(a.result));
}

void split_wgrad(const RouterProductArguments& a, std::int64_t chunk, base::CudaStream stream) {
  Splitter splitter(a.scratch, stream);
  const SplitProduct product{.left = splitter.split(a.dlogits, a.tokens, a.experts),
                             .right = splitter.whole(a.x, a.tokens, a.hidden),
                             .rows = a.experts,
                             .cols = a.hidden,
                             .inner = a.tokens};
  auto* const parts = static_cast<float*>(a.parts);
  const std::int64_t chunks = ceil_div(a.tokens, chunk);
  using P = FloatByBfloat16;
  if (a.experts <= kFewExperts)
    launch<P, FewWgradTile>(multiply_chunk<P, FewWgradTile>, product, chunks, stream, chunk, parts);
  else
    launch<P, WgradTile>(multiply_chunk<P, WgradTile>, product, chunks, stream, chunk, parts);
}

}  // namespace tessera::ops::cuda
