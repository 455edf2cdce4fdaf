// Operands with one fp32 scale that a GPU kernel writes. Internal to ops.
#pragma once
#include "tessera/ops/gemm/operand.h"
#include "tessera/quant/cuda/device_quantize.h"

namespace tessera::ops {

// Returns true if a whole matrix has one fp32 scale.
bool has_one_scale(const quant::Encoding& encoding);

struct WholeCast {
  Operands operands;    // own the memory that the cast writes
  quant::Fp8Cast cast;  // arguments of the cast, without a source
};
// Allocates the operands of a matrix, and returns the arguments of the kernel that writes them. `as` contains an
// encoding with one scale for the whole matrix, and this scale.
WholeCast whole_cast(quant::Extent matrix, const Quantization& as, at::Device device);

}  // namespace tessera::ops
