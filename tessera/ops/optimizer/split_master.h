// The fp32 masters of weights that are stored in bf16, and masters in 16 bits beside their weight.
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
#include "tessera/quant/bfloat16.h"
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

TESSERA_HOST_DEVICE inline std::uint16_t low_half(float master) {
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(master));
}
// Returns the master with this low half whose weight is bfloat16(master). The master follows the rule. A NaN becomes a
// NaN, whose bits may differ.
TESSERA_HOST_DEVICE inline float joined_master(quant::bfloat16 weight, std::uint16_t low) {
  const std::uint32_t borrow = (low & 0x8000U) << 1;
  return std::bit_cast<float>((static_cast<std::uint32_t>(weight.bits) << 16 | low) - borrow);
}

// Masters in two parts: the rounded masters, which are the weights, and the low halves of the masters.
struct SplitMasters {
  quant::bfloat16* weights = nullptr;
  std::uint16_t* low_halves = nullptr;
};

// The functions below use host memory and return when the work is done. With a stream, they use memory of its device
// and enqueue the work. The arrays of a call have `count` elements and do not overlap.

// Replaces each master by representable(master).
void make_representable(float* masters, std::int64_t count, base::CudaStream stream = nullptr);
// Writes both parts of masters that follow the rule.
void split_masters(const float* masters, std::int64_t count, const SplitMasters& to, base::CudaStream stream = nullptr);
void join_masters(const SplitMasters& from, std::int64_t count, float* masters, base::CudaStream stream = nullptr);

namespace cuda {
void make_representable(float* masters, std::int64_t count, base::CudaStream stream);
void split_masters(const float* masters, std::int64_t count, const SplitMasters& to, base::CudaStream stream);
void join_masters(const SplitMasters& from, std::int64_t count, float* masters, base::CudaStream stream);
}  // namespace cuda

}  // namespace tessera::ops
