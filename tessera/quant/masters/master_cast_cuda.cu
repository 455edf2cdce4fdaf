// Implements MasterCast on a stream. A cast uses three launches: one for the amaxes of all slices, one for all scales
// and one for all elements.
#include <memory>
#include <vector>

#include "tessera/base/device_guard.h"
#include "tessera/base/memory/buffer.h"
#include "tessera/quant/cuda/quantize_cuda.h"
#include "tessera/quant/cuda/vectors.cuh"
#include "tessera/quant/masters/master_cast_plan.h"

namespace tessera::quant {
namespace cuda {
namespace {

constexpr int kRowsAtOnce = 4;  // rows whose loads are in flight together

// The position of a thread's elements in the matrix and in the slice.
template <typename T>
struct Part {
  const T* source;  // the address that the matrix's first element would have
  std::int64_t rows, cols, begin, end;
  std::int64_t row, col;  // position of the thread's first element

  __device__ Part(const MasterItem& item, std::int64_t piece)
      : source(static_cast<const T*>(item.slice.source.data) - item.slice.slice.begin),
        rows(item.slice.matrix.rows),
        cols(item.slice.matrix.cols),
        begin(item.slice.slice.begin),
        end(item.slice.slice.end) {
    const Place place = place_in_piece(piece, item.pieces_across, item.first_row);
    row = place.row;
    col = place.col;
  }
  __device__ std::int64_t index(int r) const { return (row + r) * cols + col; }
  // Returns true if the slice may contain elements of the warp's rows.
  __device__ bool is_touched() const { return row < rows && row * cols < end && (row + kWarpRows) * cols > begin; }
  // Returns true if the slice contains all elements of the thread.
  __device__ bool is_whole() const {
    return row + kWarpRows <= rows && col + kVector <= cols && index(0) >= begin &&
           index(kWarpRows - 1) + kVector <= end;
  }
  __device__ bool holds(int r, int i) const {
    const std::int64_t at = index(r) + i;
    return row + r < rows && col + i < cols && at >= begin && at < end;
  }
};

// Returns true if each lane of the warp either has only whole vectors or is beyond the last column.
template <typename T>
__device__ bool is_whole_warp(const Part<T>& part) {
  return __all_sync(kAllLanes, part.is_whole() || part.col >= part.cols);
}

// Raises the amax of a tile that `lanes` adjacent lanes share. All lanes of the warp call this function.
__device__ void raise_tile(float* amax, float greatest, int lanes) {
  for (int distance = 1; distance < lanes; distance *= 2)
    greatest = fmaxf(greatest, __shfl_xor_sync(kAllLanes, greatest, distance));
  if (threadIdx.x % lanes == 0) raise(amax, rounded_to_bfloat16(greatest));
}

// Raises the amaxes of the warp's tiles in `tiles`, and returns the greatest magnitude of this thread. `tiles` is null
// for a weight of one tile. The warp must be whole. Rounding keeps the order of numbers, so only the amaxes are
// rounded.
template <Walk kWalk, typename T>
__device__ float take_whole(const Tiling& tiling, const Part<T>& part, float* tiles) {
  const bool live = part.col < part.cols;
  const T* from = part.source + part.index(0);
  const std::int64_t stride = part.cols;
  const int lanes = tiling.lanes;
  float* tile = tiles == nullptr ? nullptr : tiles + tiling.tile_of(part.row, part.col);
  float greatest = 0;
  float columns[kVector] = {};
#pragma unroll 1
  for (int r = 0; r < kWarpRows; r += kRowsAtOnce) {
    float values[kRowsAtOnce][kVector] = {};
    if (live) {
#pragma unroll
      for (int k = 0; k < kRowsAtOnce; ++k) load_vector(from + k * stride, values[k]);
    }
    from += kRowsAtOnce * stride;
#pragma unroll
    for (int k = 0; k < kRowsAtOnce; ++k) {
      float of_row = 0;
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        if constexpr (kWalk == Walk::column) columns[i] = fmaxf(columns[i], fabsf(values[k][i]));
        of_row = fmaxf(of_row, fabsf(values[k][i]));
      }
      greatest = fmaxf(greatest, of_row);
      if constexpr (kWalk == Walk::row) raise_tile(tile + (r + k) * tiling.across, of_row, lanes);
    }
  }
  if (kWalk == Walk::band && tile != nullptr) raise_tile(tile, greatest, lanes);
  if constexpr (kWalk == Walk::column) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) raise(tile + i, rounded_to_bfloat16(columns[i]));
  }
  return greatest;
}

// Like take_whole, for any elements, one at a time.
template <typename T>
__device__ float take_scattered(const Tiling& tiling, const Part<T>& part, float* tiles) {
  const bool by_element = tiling.walk == Walk::any || tiling.walk == Walk::column;
  float greatest = 0;
#pragma unroll 1
  for (int r = 0; r < kWarpRows; ++r) {
    float of_row = 0;
#pragma unroll 1
    for (int i = 0; i < kVector; ++i) {
      if (!part.holds(r, i)) continue;
      const float magnitude = fabsf(static_cast<float>(part.source[part.index(r) + i]));
      if (by_element) raise(tiles + tiling.tile_of(part.row + r, part.col + i), rounded_to_bfloat16(magnitude));
      of_row = fmaxf(of_row, magnitude);
    }
    if (tiling.walk == Walk::row) raise(tiles + tiling.tile_of(part.row + r, part.col), rounded_to_bfloat16(of_row));
    greatest = fmaxf(greatest, of_row);
  }
  if (tiling.walk == Walk::band && tiles != nullptr)
    raise(tiles + tiling.tile_of(part.row, part.col), rounded_to_bfloat16(greatest));
  return greatest;
}

template <typename T>
__device__ float take_part(const MasterItem& item, const Part<T>& part, float* tiles) {
  if (!part.is_touched()) return 0;
  if (item.whole_loads && is_whole_warp(part)) {
    if (item.tiling.walk == Walk::band) return take_whole<Walk::band>(item.tiling, part, tiles);
    if (item.tiling.walk == Walk::row) return take_whole<Walk::row>(item.tiling, part, tiles);
    if (item.tiling.walk == Walk::column) return take_whole<Walk::column>(item.tiling, part, tiles);
  }
  return take_scattered(item.tiling, part, tiles);
}

__global__ void __launch_bounds__(kPieceThreads)
    take_slices(const MasterItem* __restrict__ items, const std::int32_t* __restrict__ item_of_piece, float* tiles,
                float* tensors) {
  __shared__ float scratch[kPieceThreads / 32];
  const MasterItem& item = items[item_of_piece[blockIdx.x]];
  float* own_tiles = tiles + item.first_tile;
  const auto greatest_of = [&](auto type) {
    const Part<decltype(type)> part(item, blockIdx.x - item.first_piece);
    return take_part(item, part, item.is_one_tile ? nullptr : own_tiles);
  };
  const float own = item.slice.source.type == DType::fp32 ? greatest_of(float{}) : greatest_of(bfloat16{});
  const float greatest = rounded_to_bfloat16(block_greatest(own, scratch));
  if (threadIdx.x != 0) return;
  raise(tensors + item.slice.number, greatest);
  if (item.is_one_tile) raise(own_tiles, greatest);
}

__global__ void __launch_bounds__(kScalePiece)
    make_slice_scales(const MasterItem* __restrict__ items, const std::int32_t* __restrict__ item_of_piece,
                      const float* __restrict__ tiles, const float* __restrict__ tensors,
                      float* __restrict__ multipliers) {
  const MasterItem& item = items[item_of_piece[blockIdx.x]];
  const std::int64_t piece = blockIdx.x - item.first_scale_piece;
  const float tensor_amax = tensors[item.slice.number];
  if (piece == 0 && threadIdx.x == 0) {
    if (item.slice.tensor_amax != nullptr) *item.slice.tensor_amax = tensor_amax;
    if (item.slice.not_finite != nullptr) *item.slice.not_finite = 0;
  }
  const std::int64_t tile = item.made_tiles.begin + piece * kScalePiece + threadIdx.x;
  if (tile >= item.made_tiles.end) return;
  const float amax = item.is_one_tile ? tensor_amax : tiles[item.first_tile + tile];
  const TileScale scale = tile_scale(item.slice.encoding, amax, tensor_amax);
  multipliers[item.first_tile + tile] = scale.multiplier;
  const Slice stored = item.slice.tiles;
  if (tile < stored.begin || tile >= stored.end || item.slice.scales == nullptr) return;
  if (item.slice.encoding.scale == Scale::fp32)
    static_cast<std::uint32_t*>(item.slice.scales)[tile - stored.begin] = scale.stored;
  else
    static_cast<std::uint8_t*>(item.slice.scales)[tile - stored.begin] = static_cast<std::uint8_t>(scale.stored);
}

// Writes half a byte. Another thread may write the other half at the same time. Both threads therefore use atomic
// operations on the word that contains the byte.
__device__ void store_nibble(std::uint8_t* byte, bool high, std::uint32_t code) {
  const auto address = reinterpret_cast<std::uintptr_t>(byte);
  auto* word = reinterpret_cast<unsigned*>(address & ~std::uintptr_t{3});
  const unsigned shift = static_cast<unsigned>(address & 3) * 8 + (high ? 4 : 0);
  atomicAnd(word, ~(0xFU << shift));
  atomicOr(word, code << shift);
}

template <Element kElement>
__device__ void store_codes(std::uint8_t* data, bool at_once, const std::uint32_t (&words)[kCodeWords<kElement>]) {
  if (at_once) {
    if constexpr (kElement == Element::e2m1)
      *reinterpret_cast<std::uint32_t*>(data) = words[0];
    else
      *reinterpret_cast<uint2*>(data) = {words[0], words[1]};
  } else {
#pragma unroll
    for (int i = 0; i < 4 * kCodeWords<kElement>; ++i)
      data[i] = static_cast<std::uint8_t>(words[i / 4] >> (8 * (i % 4)));
  }
}

// The casts below return `zeros` + 0 * value, summed over all values that they cast. The result is NaN if a value is
// not finite.

// Casts the elements of a row's vector that the slice contains, one at a time.
template <Element kElement, typename T>
__device__ float cast_scattered(const Part<T>& part, int r, const Tiling& tiling, const float* multipliers,
                                std::uint8_t* data, float zeros) {
  const auto code = [&](int i) {
    const float value = rounded_to_bfloat16(static_cast<float>(part.source[part.index(r) + i]));
    zeros = fmaf(value, 0.0F, zeros);
    const float product = value * multipliers[tiling.tile_of(part.row + r, part.col + i)];
    if constexpr (kElement == Element::e2m1)
      return encode_e2m1(product);
    else
      return detail::encode_pair<kElement>(product, 0) & 0xFFU;
  };
#pragma unroll 1
  for (int i = 0; i < kVector; i += 2) {
    const bool low = part.holds(r, i), high = part.holds(r, i + 1);
    const std::int64_t at = part.index(r) + i;
    if constexpr (kElement == Element::e2m1) {
      std::uint8_t* byte = data + at / 2;
      if (low && high)
        *byte = static_cast<std::uint8_t>(code(i) | code(i + 1) << 4);
      else if (low || high)
        store_nibble(byte, high, code(low ? i : i + 1));
    } else {
      if (low) data[at] = static_cast<std::uint8_t>(code(i));
      if (high) data[at + 1] = static_cast<std::uint8_t>(code(i + 1));
    }
  }
  return zeros;
}

// Casts whole vectors. If kByColumn is true, each column of the part has its own multiplier.
template <Element kElement, bool kByColumn, typename T>
__device__ float cast_whole(const Tiling& tiling, const Part<T>& part, const float* multipliers, std::uint8_t* data,
                            bool at_once) {
  constexpr int kElementsInByte = elements_in_byte(kElement);
  const bool by_row = tiling.walk == Walk::row;
  const std::int64_t across = tiling.across, stride = part.cols;
  const float* multiplier = multipliers + tiling.tile_of(part.row, part.col);
  const T* from = part.source + part.index(0);
  std::uint8_t* to = data + part.index(0) / kElementsInByte;
  float first[kByColumn ? kVector : 1], zeros = 0;
#pragma unroll
  for (int i = 0; i < (kByColumn ? kVector : 1); ++i) first[i] = multiplier[i];
#pragma unroll 1
  for (int r = 0; r < kWarpRows; r += kRowsAtOnce) {
    float values[kRowsAtOnce][kVector], of_row[kRowsAtOnce];
#pragma unroll
    for (int k = 0; k < kRowsAtOnce; ++k) {
      load_vector(from + k * stride, values[k]);
      of_row[k] = first[0];
    }
    if (!kByColumn && by_row) {
#pragma unroll
      for (int k = 0; k < kRowsAtOnce; ++k) of_row[k] = __ldg(multiplier + (r + k) * across);
    }
#pragma unroll
    for (int k = 0; k < kRowsAtOnce; ++k) {
      round_vector<T>(values[k]);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        zeros = fmaf(values[k][i], 0.0F, zeros);
        values[k][i] *= kByColumn ? first[kByColumn ? i : 0] : of_row[k];
      }
      std::uint32_t words[kCodeWords<kElement>];
      encode_vector<kElement>(values[k], words);
      store_codes<kElement>(to, at_once, words);
      to += stride / kElementsInByte;
    }
    from += kRowsAtOnce * stride;
  }
  return zeros;
}

template <Element kElement, typename T>
__device__ float cast_part(const MasterItem& item, const Part<T>& part, const float* __restrict__ multipliers) {
  std::uint8_t* data = item.slice.data - part.begin / elements_in_byte(kElement);
  if (item.whole_loads && part.is_whole() && item.tiling.walk != Walk::any) {
    if (item.tiling.walk == Walk::column)
      return cast_whole<kElement, true>(item.tiling, part, multipliers, data, item.whole_stores);
    return cast_whole<kElement, false>(item.tiling, part, multipliers, data, item.whole_stores);
  }
  float zeros = 0;
#pragma unroll 1
  for (int r = 0; r < kWarpRows; ++r) zeros = cast_scattered<kElement>(part, r, item.tiling, multipliers, data, zeros);
  return zeros;
}

template <typename T>
__device__ float cast_piece(const MasterItem& item, std::int64_t piece, const float* multipliers) {
  const Part<T> part(item, piece);
  if (!part.is_touched()) return 0;
  switch (item.slice.encoding.element) {
    case Element::e4m3:
      return cast_part<Element::e4m3>(item, part, multipliers);
    case Element::e5m2:
      return cast_part<Element::e5m2>(item, part, multipliers);
    case Element::e2m1:
      return cast_part<Element::e2m1>(item, part, multipliers);
  }
  return 0;
}

__global__ void __launch_bounds__(kPieceThreads)
    cast_slices(const MasterItem* __restrict__ items, const std::int32_t* __restrict__ item_of_piece,
                const float* __restrict__ multipliers) {
  const MasterItem& item = items[item_of_piece[blockIdx.x]];
  const std::int64_t piece = blockIdx.x - item.first_piece;
  const float zeros = item.slice.source.type == DType::fp32
                          ? cast_piece<float>(item, piece, multipliers + item.first_tile)
                          : cast_piece<bfloat16>(item, piece, multipliers + item.first_tile);
  // Several slices may share a mark. The previous launch cleared it, so only NaNs are stored.
  if (isnan(zeros) && item.slice.not_finite != nullptr) *item.slice.not_finite = zeros;
}

template <typename T>
base::Buffer uploaded(const std::vector<T>& values, base::Device device) {
  base::Buffer buffer(values.size() * sizeof(T), device);
  base::copy_bytes(buffer.data(), values.data(), buffer.size());
  return buffer;
}

class CudaMasterCast final : public MasterCast {
 public:
  CudaMasterCast(const MasterCastPlan& plan, base::Device device, base::CudaStream stream)
      : device_(device),
        stream_(stream),
        numbers_(plan.numbers),
        tiles_(plan.tiles),
        pieces_(checked_blocks(static_cast<std::int64_t>(plan.item_of_piece.size()))),
        scale_pieces_(checked_blocks(static_cast<std::int64_t>(plan.item_of_scale_piece.size()))),
        items_(uploaded(plan.items, device)),
        item_of_piece_(uploaded(plan.item_of_piece, device)),
        item_of_scale_piece_(uploaded(plan.item_of_scale_piece, device)),
        amaxes_(static_cast<std::size_t>(plan.tiles + numbers_) * sizeof(float), device),
        multipliers_(static_cast<std::size_t>(plan.tiles) * sizeof(float), device) {}

  float* amaxes() override { return amaxes_.as<float>().data(); }
  std::int64_t amax_count() const override { return tiles_ + numbers_; }
  std::int64_t numbers() const override { return numbers_; }

  void clear_amaxes() override {
    const base::DeviceGuard guard(device_);
    TESSERA_CUDA_CHECK(cudaMemsetAsync(amaxes_.data(), 0, amaxes_.size(), stream_));
  }

  void compute_amaxes() override {
    const base::DeviceGuard guard(device_);
    clear_amaxes();
    if (pieces_ > 0)
      take_slices<<<pieces_, kPieceThreads, 0, stream_>>>(items(), indices(item_of_piece_), amaxes(), tensor_amaxes());
    TESSERA_CUDA_CHECK(cudaGetLastError());
  }

  void cast() override {
    const base::DeviceGuard guard(device_);
    float* multipliers = multipliers_.as<float>().data();
    if (scale_pieces_ > 0)
      make_slice_scales<<<scale_pieces_, kScalePiece, 0, stream_>>>(items(), indices(item_of_scale_piece_), amaxes(),
                                                                    tensor_amaxes(), multipliers);
    if (pieces_ > 0) cast_slices<<<pieces_, kPieceThreads, 0, stream_>>>(items(), indices(item_of_piece_), multipliers);
    TESSERA_CUDA_CHECK(cudaGetLastError());
  }

 private:
  const MasterItem* items() const { return items_.as<MasterItem>().data(); }
  static const std::int32_t* indices(const base::Buffer& buffer) { return buffer.as<std::int32_t>().data(); }

  const base::Device device_;
  const base::CudaStream stream_;
  const std::int64_t numbers_, tiles_;
  const unsigned pieces_, scale_pieces_;
  const base::Buffer items_, item_of_piece_, item_of_scale_piece_;
  base::Buffer amaxes_, multipliers_;
};

}  // namespace

std::unique_ptr<MasterCast> make_master_cast(std::span<const MasterSlice> slices, base::Device device,
                                             base::CudaStream stream, std::int64_t numbers) {
  return std::make_unique<CudaMasterCast>(plan_master_cast(slices, numbers), device, stream);
}

}  // namespace cuda
}  // namespace tessera::quant
