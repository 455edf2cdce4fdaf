// Adds the gradient of a router's input to another gradient of the same tensor.
#pragma once
#include <ATen/core/Tensor.h>

namespace tessera::ops {

// Returns dx + dlogits w in the type of dx. The product is computed in the accumulator type. The sum with `dx` is also
// computed in the accumulator type, and rounded once. dx: [tokens, hidden] in the model's type. dlogits: [tokens,
// experts], accumulator type. w: [experts, hidden], accumulator type.
at::Tensor add_router_dgrad(const at::Tensor& dx, const at::Tensor& dlogits, const at::Tensor& w);

}  // namespace tessera::ops
