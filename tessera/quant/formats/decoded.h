// Decoded operands of products, for formats that the hardware does not multiply. A decoded operand is a bf16 matrix of
// code values: an element times the scale of its tile. It contains no number of the whole matrix. A product of two
// decoded operands is a bf16 product with fp32 sums, times alpha (product_alpha of encoding.h):
//
//   y = round_to_output(round_to_fp32(alpha * sum))
//
// The code values of nvfp4 (16 x 16 and 1 x 16 tiles), of mxfp8 and of fp8_block are exact in bf16 with these
// exceptions: mxfp8 and fp8_block round bf16 numbers of 2^128 - 2^123 and more to 2^128, which is infinite, and a tile
// of mxfp8 may have codes below the smallest bf16 number that no bf16 source gives.
//
// An operand by columns keeps the order of the matrix; its tiles extend along the columns. A product sums over the
// columns of an operand by rows, and over the rows of an operand by columns.
//
// If a tile of an operand with scales of one byte holds a NaN or an infinity, its scale is NaN, so all its decoded
// values are NaN. fp32 scales are NaN if the tile holds an infinity; a NaN element keeps its NaN code. A decoded NaN
// has the bits 0x7FFF.
#pragma once
#include <cstdint>

#include "tessera/quant/formats/quantize.h"
#include "tessera/quant/formats/stochastic_rounding.h"

namespace tessera::quant {

// Returns the encoding of the same matrix by columns: the tile is transposed.
constexpr Encoding by_columns(Encoding encoding) {
  encoding.tile = {.rows = encoding.tile.cols, .cols = encoding.tile.rows};
  return encoding;
}

// Writes the decoded values of a quantized matrix. source.tensor_amax is not read.
void decode(const Quantized& source, Extent matrix, const Encoding& encoding, bfloat16* target);

// A dense bf16 matrix of activations or gradients and its encoding. The products need no padding and any number of rows
// and columns is allowed.
struct OperandSource {
  const bfloat16* values = nullptr;
  Extent matrix;
  Encoding encoding;
  // The number of the whole matrix: its amax T for e4m3 scales, the multiplier for an encoding with one fp32 scale.
  // Other encodings do not read the number.
  float whole = 0;
  // Rounds E2M1 elements stochastically if rounding.step is not null. The side is `columns` if the tile has one column.
  StochasticRounding rounding;
};

// Returns the extent of the stored codes. Two 4-bit elements share a byte, so an odd number of columns of 4-bit
// elements has one more column of zeros. Scales have the scale_extent of this extent.
constexpr Extent stored_extent(const Encoding& encoding, Extent matrix) {
  if (encoding.element == Element::e2m1) matrix.cols += matrix.cols % 2;
  return matrix;
}

// Writes the codes and scales of an operand. `target` has the stored_extent. target.scales is not read or written if
// the encoding has one fp32 scale, and target.tensor_amax is not written.
void quantize_operand(const OperandSource& operand, const Quantized& target);

// Writes the decoded values of an operand to `target`, which has the extent operand.matrix. The result equals
// quantize_operand followed by decode.
void decode_operand(const OperandSource& operand, bfloat16* target);

}  // namespace tessera::quant
