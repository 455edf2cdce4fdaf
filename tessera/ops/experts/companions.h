// A check of the library's grouped products: the bits of an expert must not depend on the other experts.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::ops {

// Multiplies the rows of one expert, with a weight [out, in] of bf16, beside few and beside many other rows, which the
// library multiplies with different kernels. Throws Error if the bits of a product differ. Only on a GPU. Waits for the
// GPU, and returns its memory.
void check_companions(std::int64_t out, std::int64_t in, at::Device device);

}  // namespace tessera::ops
