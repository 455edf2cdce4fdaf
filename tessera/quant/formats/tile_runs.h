// Loops over the tiles of a matrix on the host, and access to its codes and scales. Internal to formats.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "tessera/base/ceil_div.h"
#include "tessera/quant/formats/quantize.h"

namespace tessera::quant {

// Calls visit(T{}), where T is E4M3, E5M2 or E2M1.
template <typename Visit>
void dispatch_element(Element element, Visit&& visit) {
  switch (element) {
    case Element::e4m3:
      return visit(E4M3{});
    case Element::e5m2:
      return visit(E5M2{});
    case Element::e2m1:
      return visit(E2M1{});
  }
}

// The values of all codes of an element type, indexed by code.
template <typename Type>
constexpr std::array<float, 256> decoded_values() {
  std::array<float, 256> values{};
  for (int code = 0; code < 256; ++code)
    values[static_cast<std::size_t>(code)] = Type::decode(static_cast<std::uint8_t>(code));
  return values;
}
template <typename Type>
inline constexpr std::array<float, 256> kValues = decoded_values<Type>();

using base::ceil_div;

// A run is a range of adjacent elements in one row and in one tile. Calls visit(tile, begin, end) for the runs of a
// slice in order; elements [begin, end) of the matrix belong to tile number `tile`.
template <typename Visit>
void for_each_run(Extent matrix, const ScaleTile& tile, Slice slice, Visit&& visit) {
  if (slice.size() <= 0) return;
  const std::int64_t tile_rows = tile.rows == 0 ? matrix.rows : tile.rows;
  const std::int64_t tile_cols = tile.cols == 0 ? matrix.cols : tile.cols;
  const std::int64_t tiles_in_row = ceil_div(matrix.cols, tile_cols);
  std::int64_t row = slice.begin / matrix.cols;
  for (std::int64_t begin = slice.begin; begin < slice.end; ++row) {
    const std::int64_t row_begin = row * matrix.cols, row_end = std::min(row_begin + matrix.cols, slice.end);
    const std::int64_t tile_col = (begin - row_begin) / tile_cols;
    std::int64_t number = row / tile_rows * tiles_in_row + tile_col;
    std::int64_t tile_end = row_begin + (tile_col + 1) * tile_cols;
    for (; begin < row_end; ++number, tile_end += tile_cols) {
      const std::int64_t end = std::min(tile_end, row_end);
      visit(number, begin, end);
      begin = end;
    }
  }
}

// Returns the bit offset of an element in its byte.
constexpr int nibble_shift(std::int64_t index) {
  return index % 2 == 0 ? 0 : 4;
}

// Returns the code of element `index` of a whole matrix.
template <typename Type>
std::uint8_t code_of(const std::uint8_t* data, std::int64_t index) {
  if constexpr (std::is_same_v<Type, E2M1>)
    return data[index / 2] >> nibble_shift(index) & 0xF;
  else
    return data[index];
}

// Writes the code of element `index`. The other half of a byte with two elements does not change.
template <typename Type>
void store_code(std::uint8_t* data, std::int64_t index, std::uint8_t code) {
  if constexpr (std::is_same_v<Type, E2M1>) {
    const int shift = nibble_shift(index);
    std::uint8_t& byte = data[index / 2];
    byte = static_cast<std::uint8_t>((byte & (0xF0U >> shift)) | static_cast<std::uint32_t>(code) << shift);
  } else {
    data[index] = code;
  }
}

// Returns the stored bits of tile number `tile`.
inline std::uint32_t stored_scale(Scale scale, const void* scales, std::int64_t tile) {
  return scale == Scale::fp32 ? static_cast<const std::uint32_t*>(scales)[tile]
                              : static_cast<const std::uint8_t*>(scales)[tile];
}

inline void store_scale(Scale scale, std::uint32_t stored, void* scales, std::int64_t tile) {
  if (scale == Scale::fp32)
    static_cast<float*>(scales)[tile] = std::bit_cast<float>(stored);
  else
    static_cast<std::uint8_t*>(scales)[tile] = static_cast<std::uint8_t>(stored);
}

// Calls visit(index, value, scale) for every element of a quantized matrix. scale_of(stored) returns the scale of a
// tile from its stored bits.
template <typename ScaleOf, typename Visit>
void for_each_value(const Quantized& source, Extent matrix, const Encoding& encoding, ScaleOf scale_of, Visit visit) {
  check_extent(encoding, matrix);
  dispatch_element(encoding.element, [&](auto type) {
    using Type = decltype(type);
    for_each_run(matrix, encoding.tile, {.begin = 0, .end = matrix.elements()},
                 [&](std::int64_t number, std::int64_t begin, std::int64_t end) {
                   const float scale = scale_of(stored_scale(encoding.scale, source.scales, number));
                   for (std::int64_t i = begin; i < end; ++i)
                     visit(i, kValues<Type>[code_of<Type>(source.data, i)], scale);
                 });
  });
}

}  // namespace tessera::quant
