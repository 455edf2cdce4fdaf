// Arguments of the GPU kernels for number formats, which cuda_table.h lists. All pointers are memory of the current
// device. The kernels write the same bytes as the functions of quantize.h. Only the bits of a value that is NaN may
// differ.
#pragma once
#include <cstdint>

#include "tessera/quant/formats/columnwise.h"
#include "tessera/quant/formats/quantize.h"
#include "tessera/quant/formats/stochastic_rounding.h"

namespace tessera::quant {

// Arguments to dequantize a stack of matrices to bf16, as dequantize() of quantize.h does for each of them, or to
// decode them, as decode() of decoded.h does. The elements of the matrices are adjacent in `target`.
struct Dequantization {
  Quantized source;
  Extent matrix;  // of one matrix of the stack
  Encoding encoding;
  bfloat16* target = nullptr;
  std::int64_t matrices = 1;
  bool decoded = false;  // whether `target` gets decoded values; source.tensor_amax is not read then
};

// A matrix and the address of its amax. The caller sets *amax to 0 before the first launch. The kernel only raises
// *amax.
struct AmaxTask {
  Source source;
  std::int64_t elements = 0;
  float* amax = nullptr;
};

// The results of one side of an operand. Results whose address is null are not written.
struct OperandSide {
  const float* whole = nullptr;  // amax T of the matrix on this side; e8m0 scales do not read it
  bfloat16* decoded = nullptr;   // decoded values (decoded.h), dense
  Quantized stored;              // codes and scales with the stored_extent; tensor_amax is not used
  constexpr bool is_wanted() const { return decoded != nullptr || stored.data != nullptr; }
};

// Arguments to quantize a bf16 matrix by rows and by columns in one pass, as decode_operand and quantize_operand of
// decoded.h do. `encoding` is the encoding by rows: tiles of 1 x 16 elements of nvfp4, 1 x 32 of mxfp8, or 16 x 16 of
// nvfp4. Square tiles have no results by columns, because the results by rows serve both sides.
struct OperandCast {
  const bfloat16* source = nullptr;
  Extent matrix;
  Encoding encoding;
  OperandSide rows;
  OperandSide columns;  // in the encoding by_columns(encoding)
  // Transforms the columns first (hadamard.h), so they have the transformed_extent. Only for tiles of 1 x 16.
  bool transform = false;
  StochasticRounding rounding;  // only for tiles of 1 x 16; the step is in device memory
};

// Arguments to compute the amaxes T of both sides of an operand in one pass. The caller sets them to 0 before. The
// kernel only raises them. NaNs are ignored.
struct OperandAmaxes {
  const bfloat16* source = nullptr;
  Extent matrix;
  float* rows = nullptr;     // of the matrix; null: not computed
  float* columns = nullptr;  // of the transformed columns (hadamard.h)
};

// Arguments to multiply a bf16 matrix by one number and round it to fp8. The results have the extent `padded`. Their
// rows and columns outside the matrix are filled with zeros. `padded` is at least as large as `matrix`, and its sides
// are multiples of 16.
struct Fp8Cast {
  const bfloat16* source = nullptr;
  Extent matrix, padded;
  Element element = Element::e4m3;
  const float* multiplier = nullptr;
  std::uint8_t* rowwise = nullptr;     // [padded.rows, padded.cols]; null: not written
  std::uint8_t* columnwise = nullptr;  // transposed, [padded.cols, padded.rows]; null: not written
  float* amax = nullptr;               // amax of the source, raised as in AmaxTask; null: not computed
};

// Arguments to cast a bf16 matrix to E4M3 or E5M2 in blocks of 128 elements. The elements of a block share an fp32
// scale. The scale of row r and block b is scales[b * padded rows + r], so the scales of adjacent rows are adjacent.
// Rows of padding have the scale 1.
struct BlockCast {
  const bfloat16* source = nullptr;
  Extent matrix, padded;
  Element element = Element::e4m3;
  bool powers_of_two = true;
  // True for weights: all elements of a square of 128 x 128 share a scale. The square in square row r and square column
  // c has the scale rowwise_scales[r * scale_stride(cols) + c]. The same scale is columnwise_scales[c *
  // scale_stride(rows) + r]. The padding at the end of each row of scales is not written.
  bool squares = false;
  // Blocks along the rows.
  std::uint8_t* rowwise = nullptr;  // [padded.rows, padded.cols]; null: neither codes nor scales are written
  float* rowwise_scales = nullptr;  // [ceil(cols / 128), padded.rows]
  // Blocks along the columns, which are the rows of the transposed matrix.
  std::uint8_t* columnwise = nullptr;  // [padded.cols, padded.rows]; null: neither codes nor scales are written
  float* columnwise_scales = nullptr;  // [ceil(rows / 128), padded.cols]
};

}  // namespace tessera::quant
