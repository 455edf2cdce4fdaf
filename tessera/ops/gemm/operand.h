// Operands of products in number formats. A product multiplies the rows of two matrices (left right^T), and the tiles
// of scales extend along these rows. A matrix therefore has two operands: one by its rows, and one by its columns,
// which are the rows of the transposed matrix.
//
//   y  = x w^T    rows of x, rows of w
//   dx = dy w     rows of dy, columns of w
//   dw = dy^T x   columns of dy, columns of x
//
// The columns of dy and of x may be transformed first, because the transform does not change dw. They then have the
// quant::transformed_extent, so their number of tokens is a multiple of 16.
//
// quant/formats/quantize.h defines the numbers. There are two kinds of products:
//
//   native   A GPU multiplies the codes. They are padded with zeros to multiples of 16, and the scales have the layout
//            of the library (gemm_device.h). A CPU multiplies the values of the codes in fp32.
//   decoded  Every device multiplies decoded values (quant/formats/decoded.h). An operand is the matrix of its codes
//            times the scales of their tiles. A product is alpha times the sum of the products of decoded values, where
//            alpha is quant::product_alpha of the amaxes of both matrices. alpha is applied to the fp32 sum, and the
//            result is rounded to fp32 and then to the type of the result.
#pragma once
#include <ATen/core/Tensor.h>

#include "tessera/ops/gemm/decoded_operand.h"
#include "tessera/ops/gemm/operand_bytes.h"
#include "tessera/ops/gemm/operand_types.h"
#include "tessera/quant/formats/format.h"
#include "tessera/quant/formats/quantize.h"

namespace tessera::ops {

// Returns the greatest magnitude of a bf16 matrix as one fp32 number on its device. NaNs are ignored.
at::Tensor amax_of(const at::Tensor& matrix);
// Returns the amaxes of the operands of a bf16 matrix: one number if all operands have the same amax, otherwise the
// amaxes of the operand by rows and of the operand by columns. transform: as in Quantization. NaNs are ignored.
at::Tensor amaxes_of(const at::Tensor& matrix, Sides sides, bool transform);
// Computes the WholeScale of an encoding from the amax of a matrix. The result is empty if the encoding does not need a
// WholeScale. An infinite amax gives the inverse scale NaN (quant::operand_scale).
WholeScale whole_scale(const quant::Encoding& encoding, const at::Tensor& amax);
// Computes the WholeScale of each operand from amaxes_of.
WholeScales whole_scales(const quant::Encoding& encoding, const at::Tensor& amaxes);

// Quantizes a bf16 matrix [rows, cols] of activations or gradients. If a value of the matrix is not finite, products of
// its operands are not finite either. The exception is delayed scaling, where the scale is known before. An infinite
// value then saturates, and *amax becomes infinite. Throws Error if as.whole lacks a number that the encoding needs.
Operands quantize(const at::Tensor& matrix, const Quantization& as);
inline Operands quantize(const at::Tensor& matrix, const quant::Encoding& encoding, Sides sides,
                         const WholeScale& whole, float* amax = nullptr) {
  return quantize(matrix, {.encoding = encoding, .sides = sides, .whole = whole, .amax = amax});
}

// fp8_codes returns the E4M3 or E5M2 codes of a matrix with one scale. The codes are dense [rows, cols], so that ranks
// can send parts of the matrix. operands_of_codes returns the operands of a matrix of these codes. An operand that does
// not need a copy shares the memory of `codes`.
at::Tensor fp8_codes(const at::Tensor& matrix, const quant::Encoding& encoding, const WholeScale& whole,
                     float* amax = nullptr);
Operands operands_of_codes(const at::Tensor& codes, const quant::Encoding& encoding, Sides sides,
                           const WholeScale& whole);

// Returns the operand of a bf16 weight [out, in], by its rows or by its columns.
Operand weight_operand(const at::Tensor& weight, quant::Format format, Sides side, const WholeScale& whole);
// Return the operands of a native product of a weight with the given extent: borrowed_weight by rows, from the stored
// codes and scales, and borrowed_columns by columns, from the weight's columnwise copy (quant/formats/columnwise.h). On
// a GPU an operand may refer to the given memory. Use the operand only while this memory exists and is unchanged.
Operand borrowed_weight(const quant::Quantized& planes, quant::Extent extent, const quant::Encoding& encoding,
                        at::Device device);
Operand borrowed_columns(const quant::Quantized& copy, quant::Extent extent, const quant::Encoding& encoding,
                         at::Device device);

// Returns the operand of the rows [begin, begin + size) of a matrix. `rows` is the rowwise operand of the whole matrix.
// The result shares the memory of `rows` if alignment and padding allow this. Throws Error if a tile of scales covers
// several rows.
Operand operand_of_rows(const Operand& rows, std::int64_t begin, std::int64_t size);

// Returns left right^T in bf16. Both operands belong to decoded products, or both to native products. If `fast` is
// true, sums have fewer bits on devices that support this. `fast` applies only to encodings with one scale per matrix.
at::Tensor multiply(const Operand& left, const Operand& right, bool fast = false);
// Writes multiply(left, right, fast) to `result`. `result` must be contiguous and bf16.
void multiply_to(const Operand& left, const Operand& right, at::Tensor& result, bool fast = false);
// Writes left right^T to `result` like gemm_wgrad. `result` is contiguous and fp32; without `accumulate` it may have
// any floating type.
void multiply_into(const Operand& left, const Operand& right, at::Tensor& result, bool accumulate);

}  // namespace tessera::ops
