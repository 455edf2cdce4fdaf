// The gradient of a router's input, added to another gradient of the same tensor.
#pragma once
#include <ATen/core/Tensor.h>

namespace tessera::ops {

// dx: [tokens, hidden] in the model's type. dlogits: [tokens, experts] and w: [experts, hidden], accumulator type.
// Returns dx + dlogits w in the type of dx. The product is computed alone, added in the accumulator type and rounded
// once.
at::Tensor add_router_dgrad(const at::Tensor& dx, const at::Tensor& dlogits, const at::Tensor& w);

}  // namespace tessera::ops
