// Operands as the codes that ranks send to each other. A rank quantizes its own rows of a matrix of activations or
// gradients, and sends the codes with their scales. A receiver makes the operand of the whole matrix from the codes of
// all ranks. The operand equals the operand that `quantize` makes of the whole matrix, if each rank's rows begin at a
// tile of the encoding.
//
// The bytes of a rank are the scales of its tiles, followed by the codes. Both are padded to a multiple of 16 bytes. An
// encoding with one scale per matrix has only codes without padding, which serve both sides.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "tessera/ops/gemm/operand_types.h"

namespace tessera::ops {

// Returns the number of bytes for some rows of a matrix. `encoding` is the encoding by rows. side: rows or columns.
std::int64_t bytes_of_codes(const quant::Encoding& encoding, quant::Extent rows, Sides side);

// The bytes of this rank's rows, one tensor for each side of the operand that was requested. With one scale per matrix,
// `rows` is the only tensor, for every request.
struct OperandCodes {
  at::Tensor rows, columns;
};
// Quantizes some rows of a bf16 matrix like `quantize`. as.whole is the scale of the whole matrix, and as.rounding is
// that of these rows. Throws Error for square tiles and for columns that are transformed.
OperandCodes operand_codes(const at::Tensor& rows, const Quantization& as);

// The codes of a whole matrix: the adjacent bytes of all ranks, in the order of their rows.
struct GatheredCodes {
  at::Tensor bytes;                // [sum of bytes_of_codes]
  std::vector<std::int64_t> rows;  // by rank: number of its rows
  std::int64_t cols = 0;
  quant::Encoding encoding;  // by rows
  WholeScale whole;
};
// Returns the operand by rows or by columns, as `quantize` returns it. `codes` has the bytes for this side. The operand
// may share the memory of codes.bytes.
Operand operand_of_gathered(const GatheredCodes& codes, Sides side);

}  // namespace tessera::ops
