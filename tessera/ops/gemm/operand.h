// Matrices in number formats as products take them. A product multiplies the rows of two matrices, left right^T, and
// tiles of scales lie along these rows, so a matrix is one operand by its rows and another one by its columns (the rows
// of its transpose):
//
//   y  = x w^T    rows of x, rows of w
//   dx = dy w     rows of dy, columns of w
//   dw = dy^T x   columns of dy, columns of x
//
// Numbers are those of quant/formats/quantize.h. On a CPU an operand holds the values that its codes stand for, in
// fp32; on a GPU the codes, padded with zeros to multiples of 16, and the scales as the library reads them
// (gemm_device.h).
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

#include "tessera/ops/gemm/operand_bytes.h"
#include "tessera/quant/formats/format.h"
#include "tessera/quant/formats/quantize.h"

namespace tessera::ops {

// Its tensors share the ownership of their memory, unless borrowed_weight made it.
struct Operand {
  quant::Extent extent;  // without padding
  quant::Encoding encoding;
  at::Tensor values;         // CPU: fp32 of that extent
  at::Tensor codes, scales;  // GPU

  bool defined() const { return values.defined() || codes.defined(); }
};

// What is known of a whole matrix before it is quantized; tensors of one fp32 number on its device.
struct WholeScale {
  at::Tensor multiplier, inverse;  // of an encoding with one fp32 scale
  at::Tensor amax;                 // of an encoding with e4m3 scales
};
// Whether an encoding needs that: its scales depend on the whole matrix.
bool needs_whole(const quant::Encoding& encoding);

// The greatest magnitude of a bf16 matrix: one fp32 number on its device. NaNs are left out.
at::Tensor amax_of(const at::Tensor& matrix);
// What an encoding takes from the amax of a whole matrix; nothing for an encoding that needs none. An infinite amax
// gives the inverse scale NaN (quant::operand_scale).
WholeScale whole_scale(const quant::Encoding& encoding, const at::Tensor& amax);

enum class Sides : std::uint8_t { rows, columns, both };
// The operands that were asked for.
struct Operands {
  Operand rows, columns;
};

// How a matrix is quantized. amax: takes the matrix's greatest magnitude where that is more than it holds; null: it is
// not taken. It lies on the matrix's device.
struct Quantization {
  quant::Encoding encoding;
  Sides sides = Sides::both;
  WholeScale whole;
  float* amax = nullptr;
};
// A bf16 matrix [rows, cols] of activations or gradients. Products of the operands are not finite where a value of the
// matrix is not: saturation hides nothing. The one exception is a known scale (delayed scaling): there an infinite
// value saturates, and `amax` becomes infinite. Errors: a device that has no kernels for the encoding.
Operands quantize(const at::Tensor& matrix, const Quantization& as);
inline Operands quantize(const at::Tensor& matrix, const quant::Encoding& encoding, Sides sides,
                         const WholeScale& whole, float* amax = nullptr) {
  return quantize(matrix, {.encoding = encoding, .sides = sides, .whole = whole, .amax = amax});
}

// E4M3 or E5M2 codes of a matrix with one scale, dense [rows, cols], so that parts of a matrix can travel; and the
// operands of a matrix of such codes, which share the ownership of `codes` where they do not copy them.
at::Tensor fp8_codes(const at::Tensor& matrix, const quant::Encoding& encoding, const WholeScale& whole,
                     float* amax = nullptr);
Operands operands_of_codes(const at::Tensor& codes, const quant::Encoding& encoding, Sides sides,
                           const WholeScale& whole);

// A bf16 weight [out, in] for products: by its rows, or by its columns.
Operand weight_operand(const at::Tensor& weight, quant::Format format, Sides side, const WholeScale& whole);
// The same from the weight's stored planes, of a matrix of this extent. On a GPU the operand by rows may be a view of
// the planes: use it only while they stay where they are and as they are. By columns it is a copy.
Operand borrowed_weight(const quant::Quantized& planes, quant::Extent extent, const quant::Encoding& encoding,
                        Sides side, at::Device device);

// left right^T in bf16. fast: sums of fewer bits where the device offers them, which it does for encodings with one
// scale.
at::Tensor multiply(const Operand& left, const Operand& right, bool fast = false);
// The same into `result`, as gemm_wgrad writes it: contiguous, fp32 or, where nothing is added, any floating type.
void multiply_into(const Operand& left, const Operand& right, at::Tensor& result, bool accumulate);

}  // namespace tessera::ops
