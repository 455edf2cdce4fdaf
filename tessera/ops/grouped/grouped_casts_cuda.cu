// Quantizes and decodes matrices of experts. The host does not know how many rows a matrix has.
#include <string>
#include <type_traits>

#include "tessera/ops/grouped/grouped_casts.h"
#include "tessera/ops/grouped/grouped_strips.cuh"

namespace tessera::ops::cuda {
namespace {

using quant::bfloat16, quant::Element, quant::Encoding, quant::Scale;

constexpr int kTiles = 128;  // the largest number of tiles in a chunk of a strip
constexpr int kScanThreads = 1024;
constexpr std::int64_t kSpread = 16;  // matrices of a spread result begin at multiples of this number of rows
constexpr std::uint32_t kMagnitude = 0x7FFF, kInfinity = 0x7F80, kSign = 0x8000, kNan = 0x7FFF;  // bits of bf16

// Returns the magnitude of a bf16 number as bits, which have the order of magnitudes. A NaN is greater than infinity,
// or 0 if it is ignored.
template <bool kIgnoresNans>
__device__ std::uint32_t magnitude(std::uint32_t bits) {
  bits &= kMagnitude;
  return kIgnoresNans && bits > kInfinity ? 0 : bits;
}

template <int kRows>
__device__ float greatest_of(const Columns<kRows>& columns) {
  std::uint32_t greatest = 0;
#pragma unroll
  for (const std::uint32_t word : columns.words)
    greatest = max(greatest, max(magnitude<true>(word), magnitude<true>(word >> 16)));
  return __uint_as_float(greatest << 16);
}

struct TileFactors {
  float multiplier, factor;
};

// The tiles of a chunk of a strip, in shared memory.
template <Scale kScale, int kRows>
class Tiles {
 public:
  __device__ Tiles(const Encoding& encoding, std::uint32_t* amaxes, TileFactors* factors)
      : amaxes_(amaxes),
        factors_(factors),
        is_row_(encoding.tile.rows == 1),
        width_(static_cast<int>(encoding.tile.cols)),
        across_(kChunkCols / width_) {}

  // Computes the scales of all tiles from the values of all threads.
  __device__ void find(const Columns<kRows>& columns, const Encoding& encoding, float whole) {
    if (threadIdx.x < kTiles) amaxes_[threadIdx.x] = 0;
    __syncthreads();
    raise_amaxes(columns);
    __syncthreads();
    if (threadIdx.x < static_cast<unsigned>(across_ * (is_row_ ? kRows : 1))) {
      const quant::TileScale scale = quant::operand_scale(encoding, __uint_as_float(amaxes_[threadIdx.x] << 16), whole);
      factors_[threadIdx.x] = {scale.multiplier, quant::decoded_factor(encoding, scale.stored)};
    }
    __syncthreads();
  }
  // Returns the factors of the thread's column `side` (0 or 1) in its row `i`.
  __device__ TileFactors of(int i, int side) const {
    return factors_[(is_row_ ? Columns<kRows>::row(i) * across_ : 0) + tile(side)];
  }

 private:
  static constexpr bool kIgnoresNans = kScale == Scale::fp32;

  __device__ int tile(int side) const { return (2 * Columns<kRows>::pair() + side) / width_; }

  // Raises the amax of a tile whose columns several lanes hold.
  __device__ void raise_shared(int tile, std::uint32_t greatest) const {
    const int lanes = min(width_ / 2, kWarp);
    for (int distance = 1; distance < lanes; distance *= 2)
      greatest = max(greatest, __shfl_xor_sync(0xFFFFFFFFU, greatest, distance));
    if (threadIdx.x % static_cast<unsigned>(lanes) == 0) atomicMax(amaxes_ + tile, greatest);
  }
  __device__ void raise_amaxes(const Columns<kRows>& columns) const {
    std::uint32_t low = 0, high = 0;
#pragma unroll
    for (int i = 0; i < Columns<kRows>::kOwn; ++i) {
      const std::uint32_t first = magnitude<kIgnoresNans>(columns.words[i]),
                          second = magnitude<kIgnoresNans>(columns.words[i] >> 16);
      if (is_row_) raise_shared(Columns<kRows>::row(i) * across_ + tile(0), max(first, second));
      low = max(low, first);
      high = max(high, second);
    }
    if (is_row_) return;
    if (width_ > 1) return raise_shared(tile(0), max(low, high));
    atomicMax(amaxes_ + tile(0), low);
    atomicMax(amaxes_ + tile(1), high);
  }

  std::uint32_t* amaxes_;
  TileFactors* factors_;
  const bool is_row_;
  const int width_, across_;
};

// The one tile of a matrix with one scale.
class WholeTile {
 public:
  __device__ WholeTile(const Encoding& /*encoding*/, std::uint32_t* /*amaxes*/, TileFactors* /*factors*/) {}
  template <int kRows>
  __device__ void find(const Columns<kRows>& /*columns*/, const Encoding& /*encoding*/, float whole) {
    multiplier_ = whole;
  }
  __device__ TileFactors of(int /*i*/, int /*side*/) const { return {multiplier_, 1}; }

 private:
  float multiplier_ = 1;
};

// Returns the bits of a decoded number times alpha. Values are rounded with the bits `random` if kRandom is true.
template <Element kElement, bool kRandom>
__device__ std::uint32_t decoded_bits(std::uint32_t bits, const TileFactors& tile, std::uint32_t random,
                                      bool multiplies, float alpha) {
  const float value = __uint_as_float((bits & kMagnitude) << 16), scaled = value * tile.multiplier;
  float decoded = 0;
  if constexpr (kRandom)
    decoded = quant::round_e2m1_randomly(scaled, random) * tile.factor;
  else
    decoded = quant::round_magnitude<kElement>(scaled) * tile.factor;
  if (multiplies) decoded *= alpha;
  if (value != value || decoded != decoded) return kNan;
  return (quant::round_pair(decoded, 0) & 0xFFFF) | (bits & kSign);
}

template <Element kElement, Scale kScale, bool kIsWhole, int kRows, bool kTransform, bool kRandom>
__global__ void __launch_bounds__(kThreads) cast_strips(const __grid_constant__ GroupedCast cast, bool pairs) {
  __shared__ std::uint32_t amaxes[kTiles];
  __shared__ TileFactors factors[kTiles];
  __shared__ float scratch[kThreads / kWarp];
  const Strip strip = strip_of_block<kRows>(cast.source, cast.places, cast.is_spread);
  if (strip.to_rows <= 0) return;
  const float whole = number_at(cast.scales, strip.matrix);
  const float alpha =
      cast.multiplies ? quant::product_alpha(cast.encoding, number_at(cast.own, strip.matrix), cast.partner_encoding,
                                             number_at(cast.partner, strip.matrix / cast.per_expert))
                      : 1.0F;
  std::conditional_t<kRandom, RandomBits, NoRandomBits> random(cast, strip);
  const int rows = kTransform ? strip.to_rows : strip.rows;  // the other rows of the result are zero
  float greatest = 0;
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    const std::int64_t first = (std::int64_t{blockIdx.y} * kChunks + chunk) * kChunkCols;
    if (first >= cast.source.cols) break;
    const std::int64_t col = first + 2 * Columns<kRows>::pair(), rest = cast.source.cols - col;
    Columns<kRows> columns;
    columns.load(cast.source, strip, col, pairs);
    if (cast.amax != nullptr) greatest = fmaxf(greatest, greatest_of(columns));
    if constexpr (kTransform) {
      __shared__ __align__(4) SharedChunk shared;
      transform(columns, shared);
    }
    random.find(col);
    std::conditional_t<kIsWhole, WholeTile, Tiles<kScale, kRows>> tiles(cast.encoding, amaxes, factors);
    tiles.find(columns, cast.encoding, whole);
#pragma unroll
    for (int i = 0; i < Columns<kRows>::kOwn; ++i) {
      const int row = Columns<kRows>::row(i);
      if (row >= strip.to_rows || rest <= 0) continue;
      std::uint32_t word = 0;
      if (row < rows) {
        const auto bits = [&](std::uint32_t value, int side) {
          return decoded_bits<kElement, kRandom>(value, tiles.of(i, side), random.of(i, side), cast.multiplies, alpha);
        };
        word = bits(columns.words[i], 0) | bits(columns.words[i] >> 16, 1) << 16;
      }
      store(cast.target + (strip.to + row) * cast.source.cols + col, word, rest, pairs);
    }
  }
  if (cast.amax == nullptr) return;
  greatest = quant::cuda::block_greatest(greatest, scratch);
  if (threadIdx.x == 0) quant::cuda::raise(cast.amax, greatest);
}

template <bool kTransform>
__global__ void __launch_bounds__(kThreads) take_strips(const __grid_constant__ GroupedAmaxes task, bool pairs) {
  __shared__ float scratch[kThreads / kWarp];
  const Strip strip = strip_of_block<kStripRows>(task.source, task.places, /*is_spread=*/false);
  if (strip.rows <= 0) return;
  float greatest = 0;
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    const std::int64_t first = (std::int64_t{blockIdx.y} * kChunks + chunk) * kChunkCols;
    Columns<kStripRows> columns;
    columns.load(task.source, strip, first + 2 * Columns<kStripRows>::pair(), pairs);
    if constexpr (kTransform) {
      __shared__ __align__(4) SharedChunk shared;
      transform(columns, shared);
    }
    greatest = fmaxf(greatest, greatest_of(columns));
  }
  greatest = quant::cuda::block_greatest(greatest, scratch);
  if (threadIdx.x == 0) quant::cuda::raise(task.amaxes + strip.matrix, greatest);
}

// Adds two numbers of each thread to those of the threads before it.
__device__ int2 sums_before(int2 own, int2* sums) {
  sums[threadIdx.x] = own;
  __syncthreads();
  for (unsigned distance = 1; distance < blockDim.x; distance *= 2) {
    const int2 before = threadIdx.x >= distance ? sums[threadIdx.x - distance] : int2{0, 0};
    __syncthreads();
    sums[threadIdx.x].x += before.x;
    sums[threadIdx.x].y += before.y;
    __syncthreads();
  }
  return {sums[threadIdx.x].x - own.x, sums[threadIdx.x].y - own.y};
}

// Launched as one thread block. Each thread processes adjacent matrices.
__global__ void __launch_bounds__(kScanThreads)
    scan_places(const std::int32_t* ends, std::int64_t matrices, int strip, int least, StripPlaces places) {
  __shared__ int2 sums[kScanThreads];
  const std::int64_t each = ceil_div(matrices, kScanThreads);
  const std::int64_t begin = min(matrices, threadIdx.x * each), end = min(matrices, begin + each);
  const auto sizes_of = [&](std::int64_t i) -> int2 {
    const int rows = max(least, ends[i] - (i == 0 ? 0 : ends[i - 1]));
    return {(rows + strip - 1) / strip, static_cast<int>((rows + kSpread - 1) / kSpread * kSpread)};
  };
  int2 own{0, 0};
  for (std::int64_t i = begin; i < end; ++i) {
    const int2 sizes = sizes_of(i);
    own.x += sizes.x, own.y += sizes.y;
  }
  int2 next = sums_before(own, sums);
  for (std::int64_t i = begin; i < end; ++i) {
    const int2 sizes = sizes_of(i);
    next.x += sizes.x, next.y += sizes.y;
    places.strip_ends[i] = next.x;
    places.result_ends[i] = next.y;
  }
}

__global__ void __launch_bounds__(kThreads)
    make_scales(const Encoding encoding, const float* amaxes, std::int64_t count, float* multipliers, float* inverses) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const quant::TileScale scale = quant::operand_scale(encoding, amaxes[i], 0);
  multipliers[i] = scale.multiplier;
  inverses[i] = __uint_as_float(scale.stored);
}

dim3 grid_of(const StackedRows& source, std::int64_t rows) {
  return {quant::cuda::checked_blocks(strips_of(source, rows)),
          quant::cuda::checked_blocks(ceil_div(source.cols, kChunks * kChunkCols)), 1};
}

bool has_pairs(const StackedRows& source, const bfloat16* target) {
  return source.cols % 2 == 0 && quant::cuda::is_aligned(source.values, 4) && quant::cuda::is_aligned(target, 4);
}

template <Element kElement, Scale kScale, bool kIsWhole, int kRows, bool kTransform = false, bool kRandom = false>
void launch(const GroupedCast& cast, base::CudaStream stream) {
  cast_strips<kElement, kScale, kIsWhole, kRows, kTransform, kRandom>
      <<<grid_of(cast.source, kRows), kThreads, 0, stream>>>(cast, has_pairs(cast.source, cast.target));
}

template <bool kTransform>
void launch_nvfp4(const GroupedCast& cast, base::CudaStream stream) {
  if (cast.rounding.step == nullptr)
    launch<Element::e2m1, Scale::e4m3, false, kStripRows, kTransform, false>(cast, stream);
  else
    launch<Element::e2m1, Scale::e4m3, false, kStripRows, kTransform, true>(cast, stream);
}

void launch_tiles(const GroupedCast& cast, base::CudaStream stream) {
  const Encoding& encoding = cast.encoding;
  const std::int64_t rows = encoding.tile.rows, cols = encoding.tile.cols;
  const bool has_element = encoding.element == (encoding.scale == Scale::e4m3 ? Element::e2m1 : Element::e4m3);
  const std::int64_t side = encoding.scale == Scale::e4m3 ? 16 : encoding.scale == Scale::e8m0 ? 32 : 128;
  const bool has_tile = (rows == 1 || rows == side) && (cols == 1 || cols == side) && (rows == side || cols == side);
  if (!has_element || !has_tile || (rows == side && cols == side && side == 32))
    base::fail("cast_grouped: no kernel for tiles of " + std::to_string(rows) + " x " + std::to_string(cols));
  if (encoding.scale == Scale::e4m3)
    return cast.transform ? launch_nvfp4<true>(cast, stream) : launch_nvfp4<false>(cast, stream);
  if (encoding.scale == Scale::e8m0)
    return rows == 1 ? launch<Element::e4m3, Scale::e8m0, false, kStripRows>(cast, stream)
                     : launch<Element::e4m3, Scale::e8m0, false, 32>(cast, stream);
  return rows == 1 ? launch<Element::e4m3, Scale::fp32, false, kStripRows>(cast, stream)
                   : launch<Element::e4m3, Scale::fp32, false, 128>(cast, stream);
}

void check_recipe(const GroupedCast& cast) {
  const Encoding& encoding = cast.encoding;
  const bool is_nvfp4 = encoding.scale == Scale::e4m3, is_square = encoding.tile.rows == encoding.tile.cols;
  if (cast.transform && (!is_nvfp4 || encoding.tile.cols != 1 || !cast.is_spread))
    base::fail("cast_grouped: expected the transform only with tiles of 16 x 1 of nvfp4 and a spread result");
  if (cast.rounding.step != nullptr && (!is_nvfp4 || is_square))
    base::fail("cast_grouped: expected stochastic rounding only with tiles of 1 x 16 or 16 x 1 of nvfp4");
}

}  // namespace

void find_places(const StackedRows& source, std::int64_t strip, const StripPlaces& places, base::CudaStream stream,
                 int least) {
  if (source.matrices == 0) return;
  scan_places<<<1, kScanThreads, 0, stream>>>(source.ends, source.matrices, static_cast<int>(strip), least, places);
  check_launch("find_places");
}

void take_grouped_amaxes(const GroupedAmaxes& task, base::CudaStream stream) {
  if (is_empty(task.source)) return;
  const dim3 grid = grid_of(task.source, kStripRows);
  const bool pairs = has_pairs(task.source, nullptr);
  if (task.transform)
    take_strips<true><<<grid, kThreads, 0, stream>>>(task, pairs);
  else
    take_strips<false><<<grid, kThreads, 0, stream>>>(task, pairs);
  check_launch("take_grouped_amaxes");
}

void cast_grouped(const GroupedCast& cast, base::CudaStream stream) {
  if (is_empty(cast.source)) return;
  check_recipe(cast);
  if (!has_one_scale(cast.encoding))
    launch_tiles(cast, stream);
  else if (cast.encoding.element == Element::e5m2)
    launch<Element::e5m2, Scale::fp32, true, kStripRows>(cast, stream);
  else
    launch<Element::e4m3, Scale::fp32, true, kStripRows>(cast, stream);
  check_launch("cast_grouped");
}

void scales_of_amaxes(const Encoding& encoding, const float* amaxes, std::int64_t count, float* multipliers,
                      float* inverses, base::CudaStream stream) {
  if (count == 0) return;
  make_scales<<<blocks_for(count, kThreads), kThreads, 0, stream>>>(encoding, amaxes, count, multipliers, inverses);
  check_launch("scales_of_amaxes");
}

}  // namespace tessera::ops::cuda
