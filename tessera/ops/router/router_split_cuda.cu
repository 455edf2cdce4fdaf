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

// Writes sums to a dense fp32 matrix. kWhole: its rows consist of whole, aligned packs.
template <bool kWhole>
struct WriteParts {
  struct Addend {};
  float* to;
  __device__ __forceinline__ void start(std::int64_t offset) { to += offset; }
  __device__ __forceinline__ Addend addend(std::int64_t, std::int64_t, std::int64_t) const { return {}; }
  __device__ __forceinline__ void operator()(std::int64_t row, std::int64_t col, std::int64_t cols, const float* sums,
                                             Addend) const {
#pragma unroll
    for (int i = 0; i < kChunk; i += kPack<float>)
      store_pack<kWhole>(to + row * cols, col + i, cols, load_pack<true, kPack<float>>(sums, i, kChunk));
  }
};
// Adds sums to a dense bf16 matrix, with one rounding.
template <bool kWhole>
struct AddToRows {
  using Addend = Pack<quant::bfloat16, kChunk>;
  const quant::bfloat16* from;
  quant::bfloat16* to;
  __device__ __forceinline__ void start(std::int64_t) {}
  __device__ __forceinline__ Addend addend(std::int64_t row, std::int64_t col, std::int64_t cols) const {
    return load_pack<kWhole, kChunk>(from + row * cols, col, cols);
  }
  __device__ __forceinline__ void operator()(std::int64_t row, std::int64_t col, std::int64_t cols, const float* sums,
                                             const Addend& addend) const {
    float values[kChunk];
#pragma unroll
    for (int i = 0; i < kChunk; ++i) values[i] = addend[i] + sums[i];
    store_pack<kWhole>(to + row * cols, col, cols, rounded<quant::bfloat16>(values));
  }
};

// Computes one product for each chunk of the inner dimension; blockIdx.z is the chunk. `write` writes the matrices of
// the chunks one after the other.
template <typename Product, typename Tile, typename Write>
__global__ void __launch_bounds__(Tile::kThreads)
    multiply_chunks(const SplitProduct a, std::int64_t chunk, Write write) {
  const std::int64_t begin = blockIdx.z * chunk;
  write.start(blockIdx.z * a.rows * a.cols);
  split_product<Product, Tile>(a.left, a.right, a.rows, a.cols, begin, min(begin + chunk, a.inner), write);
}

template <typename Product, typename Tile, typename Write>
void launch(const SplitProduct& a, std::int64_t chunk, const Write& write, base::CudaStream stream) {
  constexpr int kBytes = Tile::template kBytes<Product>;
  base::check_cuda(
      cudaFuncSetAttribute(multiply_chunks<Product, Tile, Write>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
      "shared memory of a router product");
  // Without elements of the inner dimension there is one chunk, whose sums are 0.
  const unsigned chunks = a.inner == 0 ? 1 : blocks_for(a.inner, chunk);
  const dim3 grid(blocks_for(a.rows, Tile::kRows), blocks_for(a.cols, Tile::kCols), chunks);
  multiply_chunks<Product, Tile><<<grid, Tile::kThreads, kBytes, stream>>>(a, chunk, write);
}

template <typename Product, typename Tile>
void launch_parts(const SplitProduct& a, std::int64_t chunk, void* to, base::CudaStream stream) {
  dispatch_bool(rows_whole<float>(a.cols, to), [&](auto is_whole) {
    launch<Product, Tile>(a, chunk, WriteParts<is_whole()>{static_cast<float*>(to)}, stream);
  });
}

constexpr std::int64_t kFewExperts = 16;  // smaller tiles are faster up to this number

// Tiles, which depend only on the number of experts: rows, columns, those of a warp, and the order of both matrices.
using LogitsTile = SplitTile<128, 64, 32, 32, false, false, 4>;
using FewLogitsTile = SplitTile<128, 16, 32, 16, false, false, 4>;
using DgradTile = SplitTile<128, 64, 32, 32, false, true, 2>;
using WgradTile = SplitTile<128, 64, 32, 32, true, true, 3>;
using FewWgradTile = SplitTile<16, 128, 16, 32, true, true, 3>;

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
  if (a.experts <= kFewExperts)
    launch_parts<Bfloat16ByFloat, FewLogitsTile>(product, a.hidden, a.result, stream);
  else
    launch_parts<Bfloat16ByFloat, LogitsTile>(product, a.hidden, a.result, stream);
}

void split_dgrad(const RouterProductArguments& a, base::CudaStream stream) {
  Splitter splitter(a.scratch, stream);
  const SplitProduct product{.left = splitter.split(a.dlogits, a.tokens, a.experts),
                             .right = splitter.split(a.w, a.experts, a.hidden),
                             .rows = a.tokens,
                             .cols = a.hidden,
                             .inner = a.experts};
  const auto* addend = static_cast<const quant::bfloat16*>(a.addend);
  auto* result = static_cast<quant::bfloat16*>(a.result);
  dispatch_bool(rows_whole<quant::bfloat16>(a.hidden, addend, result), [&](auto is_whole) {
    launch<FloatByFloat, DgradTile>(product, a.experts, AddToRows<is_whole()>{addend, result}, stream);
  });
}

void split_wgrad(const RouterProductArguments& a, std::int64_t chunk, base::CudaStream stream) {
  Splitter splitter(a.scratch, stream);
  const SplitProduct product{.left = splitter.split(a.dlogits, a.tokens, a.experts),
                             .right = splitter.whole(a.x, a.tokens, a.hidden),
                             .rows = a.experts,
                             .cols = a.hidden,
                             .inner = a.tokens};
  if (a.experts <= kFewExperts)
    launch_parts<FloatByBfloat16, FewWgradTile>(product, chunk, a.parts, stream);
  else
    launch_parts<FloatByBfloat16, WgradTile>(product, chunk, a.parts, stream);
}

}  // namespace tessera::ops::cuda
