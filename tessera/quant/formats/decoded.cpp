#include "tessera/quant/formats/decoded.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tessera/quant/formats/tile_runs.h"

namespace tessera::quant {
namespace {

Slice whole_of(Extent matrix) {
  return {.begin = 0, .end = matrix.elements()};
}

// The scales of an operand's tiles.
struct TileScales {
  std::vector<float> multipliers;
  std::vector<std::uint32_t> stored;
};

// Returns the amaxes of the tiles. The amax of a tile with a NaN is NaN if scales have one byte.
std::vector<float> operand_amaxes(const OperandSource& operand) {
  const bfloat16* values = operand.values;
  const Extent matrix = operand.matrix;
  const Encoding& encoding = operand.encoding;
  std::vector<float> amaxes(static_cast<std::size_t>(scale_extent(encoding, matrix).elements()));
  take_amaxes({values, DType::bf16}, matrix, encoding.tile, whole_of(matrix), amaxes);
  if (encoding.scale == Scale::fp32) return amaxes;
  for_each_run(matrix, encoding.tile, whole_of(matrix), [&](std::int64_t tile, std::int64_t begin, std::int64_t end) {
    if (std::any_of(values + begin, values + end, [](bfloat16 value) { return std::isnan(static_cast<float>(value)); }))
      amaxes[static_cast<std::size_t>(tile)] = std::numeric_limits<float>::quiet_NaN();
  });
  return amaxes;
}

TileScales operand_scales(const OperandSource& operand) {
  if (has_one_scale(operand.encoding)) return {.multipliers = {operand.whole}, .stored = {0}};
  TileScales result;
  for (const float amax : operand_amaxes(operand)) {
    const TileScale scale = operand_scale(operand.encoding, amax, operand.whole);
    result.multipliers.push_back(scale.multiplier);
    result.stored.push_back(scale.stored);
  }
  return result;
}

// Encodes the elements of an operand to E2M1 with stochastic rounding, in the order of the matrix.
class RandomEncoder {
 public:
  explicit RandomEncoder(const OperandSource& operand)
      : operand_(operand),
        step_(static_cast<std::uint32_t>(*operand.rounding.step)),
        side_(operand.encoding.tile.cols == 1 ? RoundingSide::columns : RoundingSide::rows) {}

  std::uint8_t encode(std::int64_t index, float value) {
    const std::int64_t row = index / operand_.matrix.cols, col = index % operand_.matrix.cols;
    if (row != row_ || col / kRoundedColumns != group_) {
      row_ = row;
      group_ = col / kRoundedColumns;
      words_ = rounding_words(operand_.rounding, step_, row, static_cast<std::uint32_t>(group_), side_);
    }
    const std::uint32_t bits = rounding_bits(words_, static_cast<int>(col % kRoundedColumns));
    return encode_e2m1_randomly(value, bits);
  }

 private:
  const OperandSource& operand_;
  std::uint32_t step_;
  RoundingSide side_;
  std::int64_t row_ = -1, group_ = -1;  // position of words_
  base::PhiloxCounter words_{};
};

// Calls visit(Type{}, index, code, tile) for every element of an operand in order. Type is the element type.
template <typename Visit>
void for_each_code(const OperandSource& operand, const TileScales& scales, Visit visit) {
  if (operand.encoding.element == Element::e2m1 && operand.rounding.step != nullptr) {
    RandomEncoder encoder(operand);
    return for_each_run(operand.matrix, operand.encoding.tile, whole_of(operand.matrix),
                        [&](std::int64_t tile, std::int64_t begin, std::int64_t end) {
                          const float multiplier = scales.multipliers[static_cast<std::size_t>(tile)];
                          for (std::int64_t i = begin; i < end; ++i)
                            visit(E2M1{}, i, encoder.encode(i, static_cast<float>(operand.values[i]) * multiplier),
                                  tile);
                        });
  }
  dispatch_element(operand.encoding.element, [&](auto type) {
    for_each_run(operand.matrix, operand.encoding.tile, whole_of(operand.matrix),
                 [&](std::int64_t tile, std::int64_t begin, std::int64_t end) {
                   const float multiplier = scales.multipliers[static_cast<std::size_t>(tile)];
                   for (std::int64_t i = begin; i < end; ++i)
                     visit(type, i, type.encode(static_cast<float>(operand.values[i]) * multiplier), tile);
                 });
  });
}

// Returns the matrix with columns of zeros after its last column.
std::vector<bfloat16> with_columns(const bfloat16* values, Extent matrix, Extent wide) {
  std::vector<bfloat16> result(static_cast<std::size_t>(wide.elements()));
  for (std::int64_t row = 0; row < matrix.rows; ++row)
    std::copy_n(values + row * matrix.cols, matrix.cols, result.data() + row * wide.cols);
  return result;
}

}  // namespace

void decode(const Quantized& source, Extent matrix, const Encoding& encoding, bfloat16* target) {
  for_each_value(
      source, matrix, encoding, [&](std::uint32_t stored) { return decoded_factor(encoding, stored); },
      [&](std::int64_t index, float value, float factor) { target[index] = decoded_value(value, factor); });
}

void quantize_operand(const OperandSource& operand, const Quantized& target) {
  const Extent stored = stored_extent(operand.encoding, operand.matrix);
  if (stored != operand.matrix) {
    const std::vector<bfloat16> wide = with_columns(operand.values, operand.matrix, stored);
    OperandSource with_zeros = operand;
    with_zeros.values = wide.data();
    with_zeros.matrix = stored;
    return quantize_operand(with_zeros, target);
  }
  const TileScales scales = operand_scales(operand);
  if (!has_one_scale(operand.encoding))
    for (std::size_t tile = 0; tile < scales.stored.size(); ++tile)
      store_scale(operand.encoding.scale, scales.stored[tile], target.scales, static_cast<std::int64_t>(tile));
  for_each_code(operand, scales, [&](auto type, std::int64_t index, std::uint8_t code, std::int64_t) {
    store_code<decltype(type)>(target.data, index, code);
  });
}

void decode_operand(const OperandSource& operand, bfloat16* target) {
  const TileScales scales = operand_scales(operand);
  for_each_code(operand, scales, [&](auto type, std::int64_t index, std::uint8_t code, std::int64_t tile) {
    const float factor = decoded_factor(operand.encoding, scales.stored[static_cast<std::size_t>(tile)]);
    target[index] = decoded_value(kValues<decltype(type)>[code], factor);
  });
}

}  // namespace tessera::quant
