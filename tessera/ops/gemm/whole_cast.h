// Operands with one fp32 scale per matrix, whose codes a GPU kernel writes. Internal to ops.
#pragma once
#include "tessera/ops/gemm/operand_types.h"
#include "tessera/quant/cuda/device_quantize.h"

namespace tessera::ops {

struct WholeCast {
  Operands operands;    // own the memory that the kernel writes
  quant::Fp8Cast cast;  // arguments of the kernel; `source` is not set
};
// Allocates the operands of a matrix, and returns the arguments of the kernel that writes them. The encoding in `as`
// has one scale for the whole matrix, and as.whole holds this scale.
WholeCast whole_cast(quant::Extent matrix, const Quantization& as, at::Device device);

}  // namespace tessera::ops
