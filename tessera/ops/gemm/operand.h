// Operands of products in number formats. A product multiplies the rows of two matrices (left right^T), and the tiles
// of scales extend along these rows. A matrix is therefore one operand by its rows, and another operand by its columns,
// which are the rows of its transpose:
//
//   y  = x w^T    rows of x, rows of w
//   dx = dy w     rows of dy, columns of w
//   dw = dy^T x   columns of dy, columns of x
//
// quant/formats/quantize.h defines the numbers. On a CPU an operand holds the values of its codes in fp32. On a GPU an
// operand holds the codes, padded with zeros to multiples of 16, and the scales in the layout of the library
// (gemm_device.h).
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

#include "tessera/ops/gemm/operand_bytes.h"
#include "tessera/quant/formats/format.h"
#include "tessera/quant/formats/quantize.h"

namespace tessera::ops {

// The tensors of an operand own their memory jointly, unless borrowed_weight made the operand.
struct Operand {
  quant::Extent extent;  // without padding
  quant::Encoding encoding;
  at::Tensor values;         // CPU: fp32, not padded
  at::Tensor codes, scales;  // GPU

  bool defined() const { return values.defined() || codes.defined(); }
};

// Scales of a whole matrix that are computed before the matrix is quantized. Each tensor is one fp32 number on the
// matrix's device.
struct WholeScale {
  at::Tensor multiplier, inverse;  // for an encoding with one fp32 scale
  at::Tensor amax;                 // for an encoding with e4m3 scales
};
// Returns true if an encoding needs a WholeScale, because its scales depend on the whole matrix.
bool needs_whole(const quant::Encoding& encoding);

// Returns the greatest magnitude of a bf16 matrix as one fp32 number on its device. NaNs are ignored.
at::Tensor amax_of(const at::Tensor& matrix);
// Returns the WholeScale of an encoding from the amax of a whole matrix. The result is empty for an encoding without a
// scale of the whole matrix. An infinite amax gives the inverse scale NaN (quant::operand_scale).
WholeScale whole_scale(const quant::Encoding& encoding, const at::Tensor& amax);

enum class Sides : std::uint8_t { rows, columns, both };
// The requested operands; the others are undefined.
struct Operands {
  Operand rows, columns;
};

// How a matrix is quantized. `amax` is a number on the matrix's device. Quantization raises `amax` to the greatest
// magnitude of the matrix. Null: the amax is not computed.
struct Quantization {
  quant::Encoding encoding;
  Sides sides = Sides::both;
  WholeScale whole;
  float* amax = nullptr;
};
// Quantizes a bf16 matrix [rows, cols] of activations or gradients. If a value of the matrix is not finite, products of
// its operands are not finite either. The exception is a known scale (delayed scaling): an infinite value saturates,
// and `amax` becomes infinite. Throws Error if the device has no kernels for the encoding.
Operands quantize(const at::Tensor& matrix, const Quantization& as);
inline Operands quantize(const at::Tensor& matrix, const quant::Encoding& encoding, Sides sides,
                         const WholeScale& whole, float* amax = nullptr) {
  return quantize(matrix, {.encoding = encoding, .sides = sides, .whole = whole, .amax = amax});
}

// fp8_codes returns the E4M3 or E5M2 codes of a matrix with one scale, dense [rows, cols], so that parts of the matrix
// can be sent. operands_of_codes returns the operands of a matrix of such codes; they share the memory of `codes`
// unless they copy it.
at::Tensor fp8_codes(const at::Tensor& matrix, const quant::Encoding& encoding, const WholeScale& whole,
                     float* amax = nullptr);
Operands operands_of_codes(const at::Tensor& codes, const quant::Encoding& encoding, Sides sides,
                           const WholeScale& whole);

// Returns the operand of a bf16 weight [out, in], by its rows or by its columns.
Operand weight_operand(const at::Tensor& weight, quant::Format format, Sides side, const WholeScale& whole);
// Returns the operand of a weight with the given extent from its stored codes and scales. On a GPU the operand by rows
// may refer to this memory; use it only while the memory exists and is unchanged. The operand by columns is a copy.
Operand borrowed_weight(const quant::Quantized& planes, quant::Extent extent, const quant::Encoding& encoding,
                        Sides side, at::Device device);

// Returns the operand of some rows of a matrix from the matrix's operand by rows. Shares its memory where alignment and
// padding allow it. Throws Error if a tile of scales covers several rows.
Operand operand_of_rows(const Operand& rows, std::int64_t begin, std::int64_t size);

// Returns left right^T in bf16. If `fast`, sums have fewer bits on devices that support this; `fast` applies only to
// encodings with one scale.
at::Tensor multiply(const Operand& left, const Operand& right, bool fast = false);
// Writes multiply(left, right, fast) to `result`, which is contiguous and bf16.
void multiply_to(const Operand& left, const Operand& right, at::Tensor& result, bool fast = false);
// Writes left right^T to `result` like gemm_wgrad. `result` is contiguous and fp32; without `accumulate` it may have
// any floating type.
void multiply_into(const Operand& left, const Operand& right, at::Tensor& result, bool accumulate);

}  // namespace tessera::ops
