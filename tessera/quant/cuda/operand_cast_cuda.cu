// Quantizes and decodes operands by rows and by columns in one pass, and computes their amaxes.
#include <string>
#include <type_traits>

#include "tessera/quant/cuda/operand_patch.cuh"
#include "tessera/quant/cuda/operand_scales.h"
#include "tessera/quant/cuda/quantize_cuda.h"
#include "tessera/quant/formats/decoded.h"

namespace tessera::quant::cuda {
namespace {

// A kernel for one encoding by rows. kRandom: with stochastic rounding. kVectors: rows of all matrices begin at
// multiples of the size of a vector.
template <Element kOfElements, bool kSquareTiles, bool kWithTransform, bool kRandomly, bool kInVectors>
struct Variant {
  static constexpr Element kElement = kOfElements;
  static constexpr Scale kScale = kElement == Element::e2m1 ? Scale::e4m3 : Scale::e8m0;
  static constexpr int kTile = kElement == Element::e2m1 ? 16 : 32;  // length of a tile
  static constexpr int kTileLanes = kTile / kVector;                 // lanes that hold a row of a tile
  static constexpr bool kSquares = kSquareTiles, kTransform = kWithTransform, kRandom = kRandomly,
                        kVectors = kInVectors;
};

// The scales of the tiles of one side. A table in shared memory has the scales of nvfp4, because a multiplier costs a
// division.
template <Scale kScale>
class SideScales {
 public:
  struct Table {
    float2 of_stored[kNvfp4Scales];  // multiplier and factor
  };

  // Every thread of the block calls the constructor. A barrier must follow before the first call of of().
  __device__ SideScales(const OperandSide& side, Table& table) : scales_(*side.whole), table_(table) {
    static_assert(kNvfp4Scales == kPatchThreads);
    const OperandScale scale = scales_.of(threadIdx.x);
    table.of_stored[threadIdx.x] = {scale.multiplier, scale.factor};
  }
  __device__ OperandScale of(float amax) const {
    const std::uint32_t stored = scales_.stored_of(amax);
    const float2 scale = table_.of_stored[stored];
    return {.multiplier = scale.x, .factor = scale.y, .stored = stored};
  }

 private:
  const Nvfp4Scales scales_;
  const Table& table_;
};
template <>
class SideScales<Scale::e8m0> {
 public:
  struct Table {};

  __device__ SideScales(const OperandSide& /*side*/, const Table& /*table*/) {}
  __device__ OperandScale of(float amax) const { return mxfp8_scale(amax); }
};

// The scales of eight adjacent elements of a row.
struct VectorScales {
  float multipliers[kVector], factors[kVector];
  std::uint32_t signs[kPatchWords];  // masks of the signs that decoded values have; decoded NaNs have no sign

  __device__ void set(int i, const OperandScale& scale) {
    multipliers[i] = scale.multiplier;
    factors[i] = scale.factor;
    const std::uint32_t sign = scale.factor != scale.factor ? 0 : 0x8000;
    signs[i / 2] = i % 2 == 0 ? sign : signs[i / 2] | sign << 16;
  }
  __device__ static VectorScales of_one(const OperandScale& scale) {
    VectorScales result;
#pragma unroll
    for (int i = 0; i < kVector; ++i) result.set(i, scale);
    return result;
  }
};

// Writes the results of one side for the patch of this thread. `rows` is the number of rows of the results.
template <typename V>
class SideWriter {
 public:
  __device__ SideWriter(const OperandCast& cast, const OperandSide& side, RoundingSide name, std::int64_t rows,
                        const Place& place)
      : rounding_(cast.rounding), place_(place), name_(name), cols_(cast.matrix.cols) {
    const std::int64_t stored_cols = stored_extent(cast.encoding, cast.matrix).cols;
    const std::int64_t rest = cols_ - place.col, stored_rest = stored_cols - place.col;
    rows_ = rest > 0 ? static_cast<int>(min(rows - place.row, std::int64_t{kPatchRows})) : 0;
    rest_ = static_cast<int>(min(rest, std::int64_t{kVector}));
    stored_rest_ = static_cast<int>(min(stored_rest, std::int64_t{kVector}));
    if constexpr (V::kRandom) step_ = static_cast<std::uint32_t>(*cast.rounding.step);
    if (side.decoded != nullptr) decoded_ = side.decoded + place.row * cols_ + place.col;
    if (side.stored.data == nullptr) return;
    code_stride_ = stored_cols / kInByte;
    codes_ = side.stored.data + place.row * code_stride_ + place.col / kInByte;
    scales_ = static_cast<std::uint8_t*>(side.stored.scales);
    if (name == RoundingSide::columns) {
      scales_ += place.row / V::kTile * stored_cols + place.col;
    } else {
      scale_stride_ = pieces_of(stored_cols, V::kTile);
      scales_ += (V::kSquares ? place.row / V::kTile : place.row) * scale_stride_ + place.col / V::kTile;
    }
  }

  // Rounds eight elements of row `r` of the patch and writes the results.
  __device__ void write(int r, const std::uint32_t (&words)[kPatchWords], const VectorScales& scales) const {
    if (r >= rows_) return;
    base::PhiloxCounter random{};
    if constexpr (V::kRandom)
      random = rounding_words(rounding_, step_, place_.row + r,
                              static_cast<std::uint32_t>(place_.col / kRoundedColumns), name_);
    if (codes_ != nullptr) store_codes(r, words, scales, random);
    if (decoded_ != nullptr) store_decoded(r, words, scales, random);
  }

  // Writes the scale of the tile by rows that begins in row `r` of the patch. Every thread of the tile calls this
  // function.
  __device__ void store_scale(int r, std::uint32_t stored) const {
    if (codes_ != nullptr && threadIdx.x % V::kTileLanes == 0 && r < rows_)
      scales_[r * scale_stride_] = static_cast<std::uint8_t>(stored);
  }
  // Writes the scales of eight adjacent tiles by columns, if the tiles begin in this patch.
  __device__ void store_scales(const std::uint32_t (&stored)[kVector]) const {
    if (codes_ == nullptr || place_.row % V::kTile != 0 || rows_ <= 0) return;
    if constexpr (V::kVectors) {
      store_vector(scales_, uint2{stored[0] | stored[1] << 8 | stored[2] << 16 | stored[3] << 24,
                                  stored[4] | stored[5] << 8 | stored[6] << 16 | stored[7] << 24});
    } else {
#pragma unroll
      for (int i = 0; i < kVector; ++i)
        if (i < stored_rest_) scales_[i] = static_cast<std::uint8_t>(stored[i]);
    }
  }

 private:
  static constexpr int kInByte = V::kElement == Element::e2m1 ? 2 : 1;  // elements in a byte

  __device__ void store_codes(int r, const std::uint32_t (&words)[kPatchWords], const VectorScales& scales,
                              const base::PhiloxCounter& random) const {
    float values[kVector];
    unpack({words[0], words[1], words[2], words[3]}, values);
#pragma unroll
    for (int i = 0; i < kVector; ++i) values[i] *= scales.multipliers[i];
    std::uint32_t codes[kCodeWords<V::kElement>] = {};
    if constexpr (V::kRandom) {
#pragma unroll
      for (int i = 0; i < kVector; ++i)
        codes[0] |= static_cast<std::uint32_t>(encode_e2m1_randomly(values[i], rounding_bits(random, i))) << (4 * i);
    } else {
      encode_vector<V::kElement>(values, codes);
    }
    std::uint8_t* to = codes_ + r * code_stride_;
    if constexpr (!V::kVectors) {
#pragma unroll
      for (int i = 0; i < kVector / kInByte; ++i)
        if (i * kInByte < stored_rest_) to[i] = static_cast<std::uint8_t>(codes[i / 4] >> (8 * (i % 4)));
    } else if constexpr (kInByte == 2) {
      *reinterpret_cast<std::uint32_t*>(to) = codes[0];
    } else {
      store_vector(to, uint2{codes[0], codes[1]});
    }
  }

  // Returns the decoded magnitude of element `i`.
  __device__ static float decoded(float value, int i, const VectorScales& scales, const base::PhiloxCounter& random) {
    const float magnitude = fabsf(value) * scales.multipliers[i];
    if constexpr (V::kRandom)
      return round_e2m1_randomly(magnitude, rounding_bits(random, i)) * scales.factors[i];
    else
      return round_magnitude<V::kElement>(magnitude) * scales.factors[i];
  }

  __device__ void store_decoded(int r, const std::uint32_t (&words)[kPatchWords], const VectorScales& scales,
                                const base::PhiloxCounter& random) const {
    std::uint32_t pairs[kPatchWords];
#pragma unroll
    for (int w = 0; w < kPatchWords; ++w) {
      const float low = decoded(low_half(words[w]), 2 * w, scales, random);
      const float high = decoded(high_half(words[w]), 2 * w + 1, scales, random);
      pairs[w] = round_pair(low, high) | (words[w] & scales.signs[w]);
    }
    bfloat16* to = decoded_ + r * cols_;
    if constexpr (V::kVectors) {
      store_vector(to, uint4{pairs[0], pairs[1], pairs[2], pairs[3]});
    } else {
#pragma unroll
      for (int i = 0; i < kVector; ++i)
        if (i < rest_) to[i].bits = static_cast<std::uint16_t>(pairs[i / 2] >> (16 * (i % 2)));
    }
  }

  const StochasticRounding& rounding_;
  const Place place_;
  const RoundingSide name_;
  const std::int64_t cols_;
  int rows_ = 0, rest_ = 0, stored_rest_ = 0;  // rows and columns of the patch inside the results
  std::uint32_t step_ = 0;
  // The results at the first element of the patch. Null if they are not wanted.
  bfloat16* decoded_ = nullptr;
  std::uint8_t* codes_ = nullptr;
  std::uint8_t* scales_ = nullptr;
  std::int64_t code_stride_ = 0, scale_stride_ = 0;
};

// Returns the amax of a tile from the pairs of amaxes of the lanes that hold it.
template <typename V>
__device__ float tile_amax(std::uint32_t pair) {
#pragma unroll
  for (int distance = 1; distance < V::kTileLanes; distance *= 2)
    pair = greater_or_nan(pair, __shfl_xor_sync(kAllLanes, pair, distance));
  return greater_half(pair);
}

template <typename V>
__device__ void cast_rows(const SideWriter<V>& writer, const SideScales<V::kScale>& scales, const Patch& patch) {
#pragma unroll
  for (int r = 0; r < kPatchRows; ++r) {
    std::uint32_t pair = 0;
#pragma unroll
    for (int w = 0; w < kPatchWords; ++w) pair = greater_or_nan(pair, patch[r][w]);
    const OperandScale scale = scales.of(tile_amax<V>(pair));
    writer.store_scale(r, scale.stored);
    writer.write(r, patch[r], VectorScales::of_one(scale));
  }
}

template <typename V>
__device__ void cast_squares(const SideWriter<V>& writer, const SideScales<V::kScale>& scales, const Patch& patch) {
  std::uint32_t pair = 0;
#pragma unroll
  for (int r = 0; r < kPatchRows; ++r)
#pragma unroll
    for (int w = 0; w < kPatchWords; ++w) pair = greater_or_nan(pair, patch[r][w]);
  const OperandScale scale = scales.of(tile_amax<V>(pair));
  writer.store_scale(0, scale.stored);
  const VectorScales of_tile = VectorScales::of_one(scale);
#pragma unroll
  for (int r = 0; r < kPatchRows; ++r) writer.write(r, patch[r], of_tile);
}

template <typename V>
__device__ void cast_columns(const SideWriter<V>& writer, const SideScales<V::kScale>& scales, const Patch& patch) {
  VectorScales of_columns;
  std::uint32_t stored[kVector];
#pragma unroll
  for (int w = 0; w < kPatchWords; ++w) {
    std::uint32_t pair = 0;
#pragma unroll
    for (int r = 0; r < kPatchRows; ++r) pair = greater_or_nan(pair, patch[r][w]);
    if constexpr (V::kTile > kPatchRows) pair = greater_or_nan(pair, __shfl_xor_sync(kAllLanes, pair, 16));
#pragma unroll
    for (int i = 2 * w; i < 2 * w + 2; ++i) {
      const OperandScale scale = scales.of(i % 2 == 0 ? low_half(pair) : high_half(pair));
      of_columns.set(i, scale);
      stored[i] = scale.stored;
    }
  }
  writer.store_scales(stored);
#pragma unroll
  for (int r = 0; r < kPatchRows; ++r) writer.write(r, patch[r], of_columns);
}

template <typename V>
__global__ void __launch_bounds__(kPatchThreads, 4) cast_patches(const __grid_constant__ OperandCast cast) {
  using Scales = SideScales<V::kScale>;
  __shared__ typename Scales::Table table;
  const Place place = patch_place(cast.matrix);
  Patch patch;
  load_patch<V::kVectors>(cast.source, cast.matrix, place, patch);
  if (cast.rows.is_wanted()) {
    const Scales scales(cast.rows, table);
    __syncthreads();
    const SideWriter<V> writer(cast, cast.rows, RoundingSide::rows, cast.matrix.rows, place);
    if constexpr (V::kSquares)
      cast_squares<V>(writer, scales, patch);
    else
      cast_rows<V>(writer, scales, patch);
    __syncthreads();  // the table is written again
  }
  if (V::kSquares || !cast.columns.is_wanted()) return;
  const Scales scales(cast.columns, table);
  __syncthreads();
  if constexpr (V::kTransform) transform_patch(patch);
  const std::int64_t rows = V::kTransform ? transformed_extent(cast.matrix).rows : cast.matrix.rows;
  cast_columns<V>(SideWriter<V>(cast, cast.columns, RoundingSide::columns, rows, place), scales, patch);
}

__global__ void __launch_bounds__(kPatchThreads, 4)
    take_patches(const __grid_constant__ OperandAmaxes amaxes, bool vectors) {
  __shared__ float scratch[2][kPatchThreads / 32];
  const Place place = patch_place(amaxes.matrix);
  Patch patch;
  if (vectors)
    load_patch<true>(amaxes.source, amaxes.matrix, place, patch);
  else
    load_patch<false>(amaxes.source, amaxes.matrix, place, patch);
  if (amaxes.rows != nullptr) {
    std::uint32_t pair = 0;
#pragma unroll
    for (int r = 0; r < kPatchRows; ++r)
#pragma unroll
      for (int w = 0; w < kPatchWords; ++w) pair = greater_magnitudes(pair, patch[r][w]);
    const float greatest = block_greatest(fmaxf(low_half(pair), high_half(pair)), scratch[0]);
    if (threadIdx.x == 0) raise(amaxes.rows, greatest);
  }
  if (amaxes.columns != nullptr) {
    const float greatest = block_greatest(greatest_of_transformed(patch), scratch[1]);
    if (threadIdx.x == 0) raise(amaxes.columns, greatest);
  }
}

constexpr Encoding kRowsOf16{.element = Element::e2m1, .scale = Scale::e4m3, .tile = {1, 16}};
constexpr Encoding kRowsOf32{.element = Element::e4m3, .scale = Scale::e8m0, .tile = {1, 32}};
constexpr Encoding kSquaresOf16{.element = Element::e2m1, .scale = Scale::e4m3, .tile = {16, 16}};

void check_cast(const OperandCast& cast) {
  const Encoding& encoding = cast.encoding;
  if (encoding != kRowsOf16 && encoding != kRowsOf32 && encoding != kSquaresOf16)
    base::fail("cast_operand: expected tiles of 1 x 16 or 16 x 16 of nvfp4, or of 1 x 32 of mxfp8, got " +
               std::to_string(encoding.tile.rows) + " x " + std::to_string(encoding.tile.cols));
  if (encoding != kRowsOf16 && (cast.transform || cast.rounding.step != nullptr))
    base::fail("cast_operand: expected the transform and stochastic rounding only with tiles of 1 x 16, got " +
               std::to_string(encoding.tile.rows) + " x " + std::to_string(encoding.tile.cols));
  const auto lacks_amax = [&](const OperandSide& side) {
    return encoding.scale == Scale::e4m3 && side.is_wanted() && side.whole == nullptr;
  };
  if (lacks_amax(cast.rows) || lacks_amax(cast.columns))
    base::fail("cast_operand: expected the address of the amax of each side in nvfp4, got null");
  if (encoding == kSquaresOf16 && cast.columns.is_wanted())
    base::fail(
        "cast_operand: expected no results by columns with square tiles, because the results by rows serve both");
}

// Returns true if every vector of a side is aligned to its size. The columns are a multiple of kVector.
bool is_aligned_side(const OperandSide& side, Element element) {
  return is_aligned(side.decoded, 16) && is_aligned(side.stored.data, element == Element::e2m1 ? 4 : 8) &&
         is_aligned(side.stored.scales, 8);
}
bool has_vectors(const OperandCast& cast) {
  return cast.matrix.cols % kVector == 0 && is_aligned(cast.source, 16) &&
         is_aligned_side(cast.rows, cast.encoding.element) && is_aligned_side(cast.columns, cast.encoding.element);
}

// Calls function(std::true_type{}) or function(std::false_type{}).
template <typename Function>
void with_constant(bool value, Function function) {
  if (value)
    function(std::true_type{});
  else
    function(std::false_type{});
}

template <typename V>
void launch(const OperandCast& cast, base::CudaStream stream) {
  cast_patches<V><<<patch_blocks(cast.matrix), kPatchThreads, 0, stream>>>(cast);
}

}  // namespace

void take_operand_amaxes(const OperandAmaxes& amaxes, base::CudaStream stream) {
  const unsigned blocks = patch_blocks(amaxes.matrix);
  if (blocks == 0) return;
  const bool vectors = amaxes.matrix.cols % kVector == 0 && is_aligned(amaxes.source, 16);
  take_patches<<<blocks, kPatchThreads, 0, stream>>>(amaxes, vectors);
  TESSERA_CUDA_CHECK(cudaGetLastError());
}

void cast_operand(const OperandCast& cast, base::CudaStream stream) {
  check_cast(cast);
  if (patch_blocks(cast.matrix) == 0) return;
  with_constant(has_vectors(cast), [&](auto vectors) {
    constexpr bool kVectors = decltype(vectors)::value;
    if (cast.encoding == kRowsOf32) return launch<Variant<Element::e4m3, false, false, false, kVectors>>(cast, stream);
    if (cast.encoding == kSquaresOf16)
      return launch<Variant<Element::e2m1, true, false, false, kVectors>>(cast, stream);
    with_constant(cast.transform, [&](auto transform) {
      with_constant(cast.rounding.step != nullptr, [&](auto random) {
        launch<Variant<Element::e2m1, false, decltype(transform)::value, decltype(random)::value, kVectors>>(cast,
                                                                                                             stream);
      });
    });
  });
  TESSERA_CUDA_CHECK(cudaGetLastError());
}

}  // namespace tessera::quant::cuda
