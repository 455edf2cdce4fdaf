// Linear layers cut over tp. Column-parallel: each rank has some of the out features; row-parallel: some of the in
// features.
//
//   column:  y = enter_tp(norm(x)) w^T                     backward: dx = norm'(leave_tp(dy w))
//   row:     y = leave_tp(activation(x) w^T)               backward: dx = activation'(enter_tp(dy) w)
//
// The norm in front of a column-parallel layer and the SwiGLU in front of a row-parallel one are part of the function,
// so that what they make needs not be kept for backward (Recompute::selective): it is made again from what is kept
// anyway. Saved for backward: activations and handles, never a gathered weight. Of an input that is kept for a product
// in a number format, what is kept is the operand that backward multiplies (products.h, keeps_columns).
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

#include "tessera/nn/linear_products.h"
#include "tessera/nn/norm.h"
#include "tessera/nn/weight.h"

namespace tessera::nn {

struct ColumnLinear {
  Weight weight;  // [local out, in]
  std::optional<Norm> norm;
};
struct NormedLinear {
  at::Tensor y;    // [tokens, local out]
  at::Tensor sum;  // x + residual: the residual stream goes on with it. Undefined without a norm
};
// x, residual: [own tokens, in]; residual may be undefined, and is without a norm. tokens: of the whole microbatch.
NormedLinear column_linear(Context& context, const ColumnLinear& linear, const at::Tensor& x,
                           const at::Tensor& residual, std::int64_t tokens);

enum class Activation : std::uint8_t { none, swiglu };
struct RowLinear {
  Weight weight;  // [out, local in]
  Activation activation = Activation::none;
};
// x: [tokens, local in] (twice as wide for swiglu: gate | up) -> [own tokens, out].
at::Tensor row_linear(Context& context, const RowLinear& linear, const at::Tensor& x);

// The backward products of a column-parallel weight without autograd, shared with the output layer.
// dy: [tokens, local out], input: [tokens, in] by its columns -> this rank's part of the gradient of the whole input
// [tokens, in]. Produces the weight's gradient.
at::Tensor linear_backward(Context& context, const Weight& weight, const at::Tensor& dy, const Factor& input);

}  // namespace tessera::nn
