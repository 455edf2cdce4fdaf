// The operands of products in number formats (operand.h), and how a matrix is quantized to operands.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

#include "tessera/quant/formats/product_kernel.h"
#include "tessera/quant/formats/quantize.h"
#include "tessera/quant/formats/stochastic_rounding.h"

namespace tessera::ops {

// The tensors of an operand share ownership of their memory, except in an operand of a stored weight.
struct Operand {
  quant::Extent extent;  // extent of the matrix, without padding
  quant::Encoding encoding;
  at::Tensor values;           // CPU: fp32; GPU: decoded values in bf16; without padding
  bool is_transposed = false;  // GPU: whether `values` is the transposed matrix [extent.cols, extent.rows]
  at::Tensor codes, scales;    // GPU: operands of native products, and of decoded products by columns (Sides::kept)
  at::Tensor amax;             // amax of the whole matrix, one fp32 number, if alpha of a decoded product depends on it

  bool defined() const { return values.defined() || codes.defined(); }
};

// The scale of a whole matrix, computed before the matrix is quantized. Each tensor is one fp32 number on the matrix's
// device.
struct WholeScale {
  at::Tensor multiplier, inverse;  // for an encoding with one fp32 scale per matrix
  at::Tensor amax;                 // for an encoding with e4m3 scales
};
// Returns true if an encoding needs a WholeScale. The scales of such an encoding depend on the whole matrix.
inline bool needs_whole(const quant::Encoding& encoding) {
  return encoding.scale == quant::Scale::e4m3 || has_one_scale(encoding);
}

// The scales for the two operands of a matrix. They differ if the columns are transformed before they are quantized.
struct WholeScales {
  WholeScale rows, columns;

  WholeScales() = default;
  WholeScales(WholeScale by_rows, WholeScale by_columns) : rows(std::move(by_rows)), columns(std::move(by_columns)) {}
  WholeScales(const WholeScale& both) : rows(both), columns(both) {}  // NOLINT(google-explicit-constructor)
};

// kept: like `both`, but the operand by columns is for a later product. On a GPU an operand of a decoded product then
// has codes instead of values, which need less memory. decode() makes its values.
enum class Sides : std::uint8_t { rows, columns, both, kept };
// The two operands of a matrix. An operand that was not requested is undefined.
struct Operands {
  Operand rows, columns;
};

// How a matrix is quantized.
struct Quantization {
  quant::Encoding encoding;
  Sides sides = Sides::both;
  WholeScales whole;
  // A number on the matrix's device, which quantization raises to the greatest magnitude of the matrix. Null: the
  // greatest magnitude is not computed.
  float* amax = nullptr;
  // For tiles of 1 x 16 of nvfp4: whether the columns are transformed first (quant/formats/hadamard.h), and how
  // elements are rounded.
  bool transform = false;
  quant::StochasticRounding rounding;
};

}  // namespace tessera::ops
