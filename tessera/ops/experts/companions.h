// A check of libtorch's grouped products: the bits of an expert's products must not depend on other experts.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::ops {

// Multiplies the rows of one expert twice by a bf16 weight [out, in]: together with few rows of another expert, and
// together with many. libtorch uses different kernels for the two cases. Throws Error if the bits of a product differ.
// GPU only. Waits for the GPU and frees the memory that the check used.
void check_companions(std::int64_t out, std::int64_t in, at::Device device);

}  // namespace tessera::ops
