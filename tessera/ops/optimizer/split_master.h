// The fp32 masters of weights that are stored in bf16.
//
// A bf16 weight w and 16 bits hold such a master m: the bits are the low half of m. The high half of m is that of w if
// the low half is below 0x8000, and otherwise that of w minus 1. This undoes rounding to nearest even, except for one
// case. 65,537 masters round to an even w, because both ties do. So the masters of bf16 weights follow a rule: a master
// halfway above an even high half becomes the next fp32 number toward zero, which rounds to the same weight. The rule
// applies to the masters of every bf16 weight, so that the bits of a run do not depend on how masters or weights are
// stored (docs/numerics.md).
#pragma once
#include <bit>
#include <cstdint>

#include "tessera/base/cuda_stream.h"
#include "tessera/base/host_device.h"
#include "tessera/quant/dtype.h"

namespace tessera::ops {

// Returns the master that follows the rule: `master` itself, or the next number toward zero. A NaN stays a NaN.
TESSERA_HOST_DEVICE inline float representable(float master) {
  const auto bits = std::bit_cast<std::uint32_t>(master);
  return std::bit_cast<float>(bits - ((bits & 0x1FFFFU) == 0x8000U ? 1U : 0U));
}

// Returns whether masters of this type follow the rule, if the weights of the run have the type `weight`.
constexpr bool are_representable(quant::DType master, quant::DType weight) {
  return master == quant::DType::fp32 && weight == quant::DType::bf16;
}

// Replaces each master by representable(master).
void make_representable(float* masters, std::int64_t count);

namespace cuda {
// The pointer points to device memory.
void make_representable(float* masters, std::int64_t count, base::CudaStream stream);
}  // namespace cuda

}  // namespace tessera::ops
