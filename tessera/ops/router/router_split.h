// The matrix products of the router in bf16 runs on a GPU. Logits and gradients of weights multiply bf16 numbers by the
// three planes of fp32 numbers, which hold the fp32 numbers exactly above 2^-110. The products with the gradient of the
// logits leave out terms below 2^-24 of the greatest. A result with inner dimension K differs from the exact product by
// at most (K / 64 + 128) 2^-23 times the sum of the magnitudes of its terms. The bits of a token's logits and gradient
// do not depend on other tokens or on their number. Internal to ops.
#pragma once
#include "tessera/ops/experts/experts_kernels.h"

namespace tessera::ops::cuda {

// Returns the bytes of RouterProductArguments::scratch.
std::int64_t split_scratch(const RouterProductArguments& arguments);
// The functions of experts_kernels.h for T = bf16, with at least one element of the result. dgrad requires an addend.
void split_logits(const RouterProductArguments& arguments, base::CudaStream stream);
void split_dgrad(const RouterProductArguments& arguments, base::CudaStream stream);
// Writes the parts of chunks of `chunk` tokens.
void split_wgrad(const RouterProductArguments& arguments, std::int64_t chunk, base::CudaStream stream);

}  // namespace tessera::ops::cuda
