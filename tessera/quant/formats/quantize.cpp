#include "tessera/quant/formats/quantize.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/quant/formats/tile_runs.h"

namespace tessera::quant {
namespace {

// Calls visit(T{}), where T is the C++ type of the source elements.
template <typename Visit>
void dispatch_source(DType type, Visit&& visit) {
  if (type == DType::bf16) return visit(bfloat16{});
  if (type == DType::fp32) return visit(float{});
  throw Error("quantize: expected bf16 or fp32, got {}", name_of(type));
}

// Returns the value of a source element, rounded to bf16, as float.
float value_of(bfloat16 element) {
  return static_cast<float>(element);
}
float value_of(float element) {
  return static_cast<float>(bfloat16(element));
}

// Writes elements [begin, end) of a matrix. `source` points to element `begin`, and `data` to the byte of element
// `origin`.
template <typename Type, typename T>
void cast_run(const T* source, float multiplier, std::int64_t begin, std::int64_t end, std::int64_t origin,
              std::uint8_t* data) {
  const std::int64_t first = std::is_same_v<Type, E2M1> ? origin / 2 * 2 : origin;
  for (std::int64_t i = begin; i < end; ++i)
    store_code<Type>(data, i - first, Type::encode(value_of(source[i - begin]) * multiplier));
}

// The transposition works on squares of this many rows and columns. A square fits into the first-level cache.
constexpr std::int64_t kSquare = 64;

// Writes target[col][row] = source[row][col]. A row of `source` has `source_cols` elements, and a row of `target` has
// `target_cols` elements.
template <typename T>
void transpose_square(const T* source, std::int64_t source_cols, T* target, std::int64_t target_cols, Extent square) {
  for (std::int64_t col = 0; col < square.cols; ++col)
    for (std::int64_t row = 0; row < square.rows; ++row)
      target[col * target_cols + row] = source[row * source_cols + col];
}

// Transposes a square of 4-bit elements whose sides are even. source and target point to the bytes of its first
// element.
void transpose_nibble_square(const std::uint8_t* source, std::int64_t source_cols, std::uint8_t* target,
                             std::int64_t target_cols, Extent square) {
  for (std::int64_t col = 0; col < square.cols; col += 2)
    for (std::int64_t row = 0; row < square.rows; row += 2) {
      const std::uint32_t upper = source[(row * source_cols + col) / 2];
      const std::uint32_t lower = source[((row + 1) * source_cols + col) / 2];
      target[(col * target_cols + row) / 2] = static_cast<std::uint8_t>((upper & 0xF) | (lower & 0xF) << 4);
      target[((col + 1) * target_cols + row) / 2] = static_cast<std::uint8_t>(upper >> 4 | (lower & 0xF0));
    }
}

// Calls visit(row, col, extent) for each square of a matrix.
template <typename Visit>
void for_each_square(Extent matrix, Visit&& visit) {
  for (std::int64_t row = 0; row < matrix.rows; row += kSquare)
    for (std::int64_t col = 0; col < matrix.cols; col += kSquare)
      visit(row, col, Extent{std::min(kSquare, matrix.rows - row), std::min(kSquare, matrix.cols - col)});
}

// Writes a matrix to the transposed matrix, whose rows have `target_cols` elements.
template <typename T>
void transpose_matrix(const void* source, Extent matrix, void* target, std::int64_t target_cols) {
  for_each_square(matrix, [&](std::int64_t row, std::int64_t col, Extent square) {
    transpose_square(static_cast<const T*>(source) + row * matrix.cols + col, matrix.cols,
                     static_cast<T*>(target) + col * target_cols + row, target_cols, square);
  });
}

void transpose_nibbles(const std::uint8_t* source, Extent matrix, std::uint8_t* target, std::int64_t target_cols) {
  for_each_square(matrix, [&](std::int64_t row, std::int64_t col, Extent square) {
    transpose_nibble_square(source + (row * matrix.cols + col) / 2, matrix.cols, target + (col * target_cols + row) / 2,
                            target_cols, square);
  });
}

}  // namespace

Extent scale_extent(const Encoding& encoding, Extent matrix) {
  const ScaleTile& tile = encoding.tile;
  return {.rows = tile.rows == 0 ? 1 : ceil_div(matrix.rows, tile.rows),
          .cols = tile.cols == 0 ? 1 : ceil_div(matrix.cols, tile.cols)};
}

DType scale_type(Scale scale) {
  return scale == Scale::fp32 ? DType::fp32 : DType::u8;
}

std::int64_t data_bytes(Element element, std::int64_t elements) {
  if (elements % elements_in_byte(element) != 0)
    throw Error("data_bytes: expected an even number of 4-bit elements, got {}", elements);
  return elements / elements_in_byte(element);
}

Quantized matrix_of(const Quantized& stack, std::int64_t number, Extent matrix, const Encoding& encoding) {
  const auto scale_bytes = static_cast<std::int64_t>(size_of(scale_type(encoding.scale)));
  return {.data = stack.data + data_bytes(encoding.element, number * matrix.elements()),
          .scales =
              static_cast<std::byte*>(stack.scales) + number * scale_extent(encoding, matrix).elements() * scale_bytes,
          .tensor_amax = stack.tensor_amax == nullptr ? nullptr : stack.tensor_amax + number};
}

void check_extent(const Encoding& encoding, Extent matrix) {
  if (matrix.cols % elements_in_byte(encoding.element) != 0)
    throw Error("quantize: expected an even number of columns for 4-bit elements, got a matrix of {} x {}", matrix.rows,
                matrix.cols);
}

Slice touched_tiles(const ScaleTile& tile, Extent matrix, Slice slice) {
  if (slice.size() <= 0) return {};
  const std::int64_t tile_rows = tile.rows == 0 ? matrix.rows : tile.rows;
  const std::int64_t tiles_in_row = tile.cols == 0 ? 1 : ceil_div(matrix.cols, tile.cols);
  const std::int64_t first_row = slice.begin / matrix.cols, last_row = (slice.end - 1) / matrix.cols;
  return {.begin = first_row / tile_rows * tiles_in_row, .end = (last_row / tile_rows + 1) * tiles_in_row};
}

void take_amaxes(const Source& source, Extent matrix, const ScaleTile& tile, Slice slice, std::span<float> tiles) {
  dispatch_source(source.type, [&](auto type) {
    const auto* elements = static_cast<const decltype(type)*>(source.data);
    for_each_run(matrix, tile, slice, [&](std::int64_t number, std::int64_t begin, std::int64_t end) {
      float& amax = tiles[static_cast<std::size_t>(number)];
      float greatest = amax;
      for (std::int64_t i = begin; i < end; ++i) {
        const float magnitude = std::fabs(value_of(elements[i - slice.begin]));
        greatest = magnitude > greatest ? magnitude : greatest;  // the comparison is false for a NaN
      }
      amax = greatest;
    });
  });
}

namespace {
void make_scales_by(TileScale (*scale_of)(const Encoding&, float, float), const Encoding& encoding,
                    std::span<const float> amaxes, float tensor_amax, std::span<float> multipliers, void* scales) {
  for (std::size_t tile = 0; tile < amaxes.size(); ++tile) {
    const TileScale scale = scale_of(encoding, amaxes[tile], tensor_amax);
    multipliers[tile] = scale.multiplier;
    if (scales != nullptr) store_scale(encoding.scale, scale.stored, scales, static_cast<std::int64_t>(tile));
  }
}
}  // namespace

void make_scales(const Encoding& encoding, std::span<const float> amaxes, float tensor_amax,
                 std::span<float> multipliers, void* scales) {
  make_scales_by(tile_scale, encoding, amaxes, tensor_amax, multipliers, scales);
}

void make_operand_scales(const Encoding& encoding, std::span<const float> amaxes, float tensor_amax,
                         std::span<float> multipliers, void* scales) {
  make_scales_by(operand_scale, encoding, amaxes, tensor_amax, multipliers, scales);
}

void cast(const Source& source, Extent matrix, const Encoding& encoding, Slice slice,
          std::span<const float> multipliers, std::uint8_t* data) {
  check_extent(encoding, matrix);
  dispatch_source(source.type, [&](auto type) {
    const auto* elements = static_cast<const decltype(type)*>(source.data);
    dispatch_element(encoding.element, [&](auto element) {
      for_each_run(matrix, encoding.tile, slice, [&](std::int64_t number, std::int64_t begin, std::int64_t end) {
        cast_run<decltype(element)>(elements + (begin - slice.begin), multipliers[static_cast<std::size_t>(number)],
                                    begin, end, slice.begin, data);
      });
    });
  });
}

void quantize(const Source& source, Extent matrix, const Encoding& encoding, const Quantized& target) {
  const Slice whole{.begin = 0, .end = matrix.elements()};
  std::vector<float> amaxes(static_cast<std::size_t>(scale_extent(encoding, matrix).elements()));
  take_amaxes(source, matrix, encoding.tile, whole, amaxes);
  const float tensor_amax = amaxes.empty() ? 0 : *std::max_element(amaxes.begin(), amaxes.end());
  if (target.tensor_amax != nullptr) *target.tensor_amax = tensor_amax;
  std::vector<float> multipliers(amaxes.size());
  make_scales(encoding, amaxes, tensor_amax, multipliers, target.scales);
  cast(source, matrix, encoding, whole, multipliers, target.data);
}

namespace {
template <typename T>
void unpack_matrix(const Quantized& source, Extent matrix, const Encoding& encoding, T* target) {
  const float tensor_amax = encoding.scale == Scale::e4m3 ? *source.tensor_amax : 0;
  for_each_value(
      source, matrix, encoding, [&](std::uint32_t stored) { return decode_scale(encoding.scale, stored, tensor_amax); },
      [&](std::int64_t index, float value, float scale) { target[index] = T(scale * value); });
}
}  // namespace

void dequantize(const Quantized& source, Extent matrix, const Encoding& encoding, bfloat16* target) {
  unpack_matrix(source, matrix, encoding, target);
}

void dequantize(const Quantized& source, Extent matrix, const Encoding& encoding, float* target) {
  unpack_matrix(source, matrix, encoding, target);
}

Extent Transposition::scales() const {
  const Extent tiles = scale_extent(encoding, matrix);
  return {.rows = tiles.cols, .cols = scale_cols == 0 ? tiles.rows : scale_cols};
}

void check_transposition(const Transposition& weight) {
  const Extent transposed{.rows = weight.matrix.cols, .cols = weight.matrix.rows}, codes = weight.codes();
  for (const Extent& extent : {weight.matrix, transposed, codes}) check_extent(weight.encoding, extent);
  const std::int64_t tiles = scale_extent(weight.encoding, weight.matrix).rows;
  if (codes.rows < transposed.rows || codes.cols < transposed.cols || weight.scales().cols < tiles)
    throw Error("transpose: expected room for {} x {} codes and rows of {} scales, got {} x {} and {}", transposed.rows,
                transposed.cols, tiles, codes.rows, codes.cols, weight.scales().cols);
}

namespace {
// Returns the addresses of a transposed matrix in the target.
Quantized target_of(const Transposition& weight, std::int64_t number) {
  const auto scale_bytes = static_cast<std::int64_t>(size_of(scale_type(weight.encoding.scale)));
  return {.data = weight.target.data + number * data_bytes(weight.encoding.element, weight.codes().elements()),
          .scales = static_cast<std::byte*>(weight.target.scales) + number * weight.scales().elements() * scale_bytes,
          .tensor_amax = weight.target.tensor_amax == nullptr ? nullptr : weight.target.tensor_amax + number};
}

void transpose_one(const Transposition& weight, const Quantized& source, const Quantized& target) {
  const Extent matrix = weight.matrix, codes = weight.codes(), scales = weight.scales();
  const Extent tiles = scale_extent(weight.encoding, matrix);
  const bool has_words = weight.encoding.scale == Scale::fp32;
  std::fill_n(target.data, data_bytes(weight.encoding.element, codes.elements()), std::uint8_t{0});
  std::fill_n(static_cast<std::byte*>(target.scales),
              scales.elements() * static_cast<std::int64_t>(size_of(scale_type(weight.encoding.scale))), std::byte{0});
  if (weight.encoding.element == Element::e2m1)
    transpose_nibbles(source.data, matrix, target.data, codes.cols);
  else
    transpose_matrix<std::uint8_t>(source.data, matrix, target.data, codes.cols);
  if (has_words)
    transpose_matrix<std::uint32_t>(source.scales, tiles, target.scales, scales.cols);
  else
    transpose_matrix<std::uint8_t>(source.scales, tiles, target.scales, scales.cols);
  if (source.tensor_amax != nullptr && target.tensor_amax != nullptr) *target.tensor_amax = *source.tensor_amax;
}
}  // namespace

void transpose(const Transposition& weight) {
  check_transposition(weight);
  for (std::int64_t number = 0; number < weight.matrices; ++number)
    transpose_one(weight, matrix_of(weight.source, number, weight.matrix, weight.encoding), target_of(weight, number));
}

}  // namespace tessera::quant
