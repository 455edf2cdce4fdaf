// A check of the grouped products of experts: the bits of an expert's products must not depend on other experts.
#pragma once
#include <ATen/core/Tensor.h>

#include <compare>
#include <cstdint>

#include "tessera/quant/formats/stack_kernels.h"

namespace tessera::ops {

// The products of experts with weights [out, in].
struct ExpertProducts {
  std::int64_t out = 0, in = 0;
  quant::Format format = quant::Format::bf16;
  quant::Fp8Recipe recipe = quant::Fp8Recipe::hybrid;
  quant::StackKernels kernels;
  bool transform = false, rounds_randomly = false;  // the recipe of nvfp4: RowQuantization::transform and rounding

  auto operator<=>(const ExpertProducts&) const = default;
};

// Multiplies the rows of one expert twice by a bf16 weight: together with few rows of another expert, and together with
// many. libtorch uses different kernels for the two cases. In a number format, rows and weights are quantized first.
// Throws Error if the bits of a product differ. GPU only. Waits for the GPU and frees the memory that the check used.
void check_companions(const ExpertProducts& products, at::Device device);

}  // namespace tessera::ops
