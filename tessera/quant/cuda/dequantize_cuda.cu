// Unpacks weights to bf16: to their values or to their decoded values. A weight is a stack of matrices.
#include <type_traits>

#include "tessera/quant/cuda/quantize_cuda.h"
#include "tessera/quant/cuda/weight_list.cuh"

namespace tessera::quant::cuda {
namespace {

constexpr int kRowsAtOnce = 8;  // rows whose loads are in flight together

struct Item {
  const std::uint8_t* codes;
  const void* scales;
  const float* tensor_amax;
  bfloat16* target;
  Extent matrix;                 // of one matrix of the stack
  std::int64_t matrices, tiles;  // number of matrices, and of the tiles of one matrix
  Tiling tiling;
  std::uint32_t blocks_of_matrix;
  Encoding encoding;
  bool decoded;
  bool vectors;  // whether every vector of all matrices is aligned to its size
};
using List = WeightList<Item>;

// The matrix of a stack that a thread works on, and the position of the thread's first element in this matrix.
struct Part {
  std::int64_t matrix;
  Place place;

  __device__ Part(const Item& item, std::uint32_t block) {
    const std::uint32_t number = block / item.blocks_of_matrix;
    matrix = number;
    place = place_in_piece(block - number * item.blocks_of_matrix, pieces_of(item.matrix.cols, kPieceCols), 0);
  }
  // Returns the index of an element of the matrix among the elements of the stack.
  __device__ std::int64_t index(const Item& item, std::int64_t row, std::int64_t col) const {
    return (matrix * item.matrix.rows + row) * item.matrix.cols + col;
  }
};

// Decodes the stored scale of a tile of a matrix: the scale of its values or of its decoded values.
template <Scale kScale>
struct Scales {
  const std::conditional_t<kScale == Scale::fp32, std::uint32_t, std::uint8_t>* stored;
  float tensor_amax;
  bool decoded, one;

  __device__ Scales(const Item& item, std::int64_t matrix)
      : stored(static_cast<decltype(stored)>(item.scales) + matrix * item.tiles),
        tensor_amax(kScale == Scale::e4m3 && !item.decoded ? item.tensor_amax[matrix] : 0.0F),
        decoded(item.decoded),
        one(item.decoded && has_one_scale(item.encoding)) {}
  __device__ float operator[](std::int64_t tile) const {
    if (kScale == Scale::fp32 && one) return 1;
    const std::uint32_t bits = __ldg(stored + tile);
    if (kScale == Scale::e4m3 && decoded) return E4M3::decode(static_cast<std::uint8_t>(bits));
    return decode_scale(kScale, bits, tensor_amax);
  }
};

template <Element kElement>
__device__ void load_codes(const std::uint8_t* from, std::uint32_t (&words)[kCodeWords<kElement>]) {
  if constexpr (kElement == Element::e2m1) {
    words[0] = *reinterpret_cast<const std::uint32_t*>(from);
  } else {
    const uint2 both = *reinterpret_cast<const uint2*>(from);
    words[0] = both.x;
    words[1] = both.y;
  }
}

__device__ void store_rounded(bfloat16* to, const float (&values)[kVector]) {
  store_vector(to, uint4{round_pair(values[0], values[1]), round_pair(values[2], values[3]),
                         round_pair(values[4], values[5]), round_pair(values[6], values[7])});
}

template <Element kElement, bool kByColumn, Scale kScale>
__device__ void unpack_whole(const Item& item, const Part& part, const Scales<kScale>& scales) {
  constexpr int kElementsInByte = elements_in_byte(kElement);
  const Tiling& tiling = item.tiling;
  const std::int64_t stride = item.matrix.cols, at = part.index(item, part.place.row, part.place.col);
  const bool by_row = tiling.walk == Walk::row;
  const std::int64_t first_tile = tiling.tile_of(part.place.row, part.place.col);
  const std::uint8_t* from = item.codes + at / kElementsInByte;
  bfloat16* to = item.target + at;
  float first[kByColumn ? kVector : 1];
#pragma unroll
  for (int i = 0; i < (kByColumn ? kVector : 1); ++i) first[i] = scales[first_tile + i];
#pragma unroll 1
  for (int r = 0; r < kWarpRows; r += kRowsAtOnce) {
    std::uint32_t words[kRowsAtOnce][kCodeWords<kElement>];
    float of_row[kRowsAtOnce];
#pragma unroll
    for (int k = 0; k < kRowsAtOnce; ++k) {
      load_codes<kElement>(from + k * stride / kElementsInByte, words[k]);
      of_row[k] = first[0];
    }
    if (!kByColumn && by_row) {
#pragma unroll
      for (int k = 0; k < kRowsAtOnce; ++k) of_row[k] = scales[first_tile + (r + k) * tiling.across];
    }
#pragma unroll
    for (int k = 0; k < kRowsAtOnce; ++k) {
      float values[kVector];
      decode_vector<kElement>(words[k], values);
#pragma unroll
      for (int i = 0; i < kVector; ++i) values[i] *= kByColumn ? first[kByColumn ? i : 0] : of_row[k];
      store_rounded(to, values);
      to += stride;
    }
    from += kRowsAtOnce * stride / kElementsInByte;
  }
}

// Unpacks one element at a time.
template <Element kElement, Scale kScale>
__device__ void unpack_scattered(const Item& item, const Part& part, const Scales<kScale>& scales) {
  const Place& place = part.place;
#pragma unroll 1
  for (std::int64_t row = place.row; row < min(place.row + kWarpRows, item.matrix.rows); ++row)
#pragma unroll 1
    for (std::int64_t col = place.col; col < min(place.col + kVector, item.matrix.cols); ++col) {
      const std::int64_t at = part.index(item, row, col);
      float value = 0, other = 0;
      if constexpr (kElement == Element::e2m1)
        value = decode(kElement, item.codes[at / 2] >> (at % 2 * 4) & 0xF);
      else
        detail::decode_pair<kElement>(item.codes[at], value, other);
      const std::uint32_t pair = round_pair(value * scales[item.tiling.tile_of(row, col)], 0);
      item.target[at].bits = static_cast<std::uint16_t>(pair);
    }
}

template <Element kElement, Scale kScale>
__device__ void unpack_part(const Item& item, const Part& part) {
  const Scales<kScale> scales(item, part.matrix);
  const Walk walk = item.tiling.walk;
  const bool whole = item.vectors && walk != Walk::any && part.place.row + kWarpRows <= item.matrix.rows &&
                     part.place.col + kVector <= item.matrix.cols;
  if (!whole)
    unpack_scattered<kElement>(item, part, scales);
  else if (walk == Walk::column)
    unpack_whole<kElement, true>(item, part, scales);
  else
    unpack_whole<kElement, false>(item, part, scales);
}

template <Scale kScale>
__device__ void unpack_elements(const Item& item, const Part& part) {
  switch (item.encoding.element) {
    case Element::e4m3:
      return unpack_part<Element::e4m3, kScale>(item, part);
    case Element::e5m2:
      return unpack_part<Element::e5m2, kScale>(item, part);
    case Element::e2m1:
      return unpack_part<Element::e2m1, kScale>(item, part);
  }
}

__global__ void __launch_bounds__(kPieceThreads) unpack_weights(const __grid_constant__ List list) {
  const int number = list.item_of(blockIdx.x);
  const Item& item = list.items[number];
  const Part part(item, blockIdx.x - list.first_block[number]);
  switch (item.encoding.scale) {
    case Scale::fp32:
      return unpack_elements<Scale::fp32>(item, part);
    case Scale::e8m0:
      return unpack_elements<Scale::e8m0>(item, part);
    case Scale::e4m3:
      return unpack_elements<Scale::e4m3>(item, part);
  }
}

std::int64_t blocks_of(Extent matrix) {
  return pieces_of(matrix.rows, kPieceRows) * pieces_of(matrix.cols, kPieceCols);
}

Item item_of(const Dequantization& weight) {
  check_extent(weight.encoding, weight.matrix);
  const std::uintptr_t code_bytes = kVector / elements_in_byte(weight.encoding.element);
  return {.codes = weight.source.data,
          .scales = weight.source.scales,
          .tensor_amax = weight.source.tensor_amax,
          .target = weight.target,
          .matrix = weight.matrix,
          .matrices = weight.matrices,
          .tiles = scale_extent(weight.encoding, weight.matrix).elements(),
          .tiling = Tiling(weight.encoding.tile, weight.matrix),
          .blocks_of_matrix = checked_blocks(blocks_of(weight.matrix)),
          .encoding = weight.encoding,
          .decoded = weight.decoded,
          // Rows of whole vectors keep the vectors of all matrices aligned.
          .vectors = weight.matrix.cols % kVector == 0 && is_aligned(weight.source.data, code_bytes) &&
                     is_aligned(weight.target, 16)};
}

}  // namespace

void dequantize(std::span<const Dequantization> weights, base::CudaStream stream) {
  const auto blocks_of_stack = [](const Item& item) { return item.matrices * item.blocks_of_matrix; };
  for_each_list<Item>(weights, item_of, blocks_of_stack, [&](const List& list, unsigned blocks) {
    unpack_weights<<<blocks, kPieceThreads, 0, stream>>>(list);
  });
}

}  // namespace tessera::quant::cuda
