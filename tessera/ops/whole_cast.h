// Operands with one fp32 scale as a kernel writes them on a GPU. Internal to ops.
#pragma once
#include "tessera/ops/operand.h"
#include "tessera/quant/device_quantize.h"

namespace tessera::ops {

// Whether one fp32 scale stands for a whole matrix.
bool has_one_scale(const quant::Encoding& encoding);

struct WholeCast {
  Operands operands;    // their memory
  quant::Fp8Cast cast;  // what fills it, without a source
};
// Of a matrix of that extent, in an encoding with one scale, which is known.
WholeCast whole_cast(quant::Extent matrix, const Quantization& as, at::Device device);

}  // namespace tessera::ops
