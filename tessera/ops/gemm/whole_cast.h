// Operands with one fp32 scale as a kernel writes them on a GPU. Internal to ops.
#pragma once
#include "tessera/ops/gemm/operand.h"
#include "tessera/quant/cuda/device_quantize.h"

namespace tessera::ops {

// Whether one fp32 scale stands for a whole matrix.
bool has_one_scale(const quant::Encoding& encoding);

struct WholeCast {
  Operands operands;    // their memory
  quant::Fp8Cast cast;  // what fills it, without a source
};
// Allocates the operands of a matrix of this extent, and says how a kernel fills them. as: an encoding with one scale
// for the whole matrix, and that scale, which must be known.
WholeCast whole_cast(quant::Extent matrix, const Quantization& as, at::Device device);

}  // namespace tessera::ops
