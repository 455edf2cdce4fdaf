// Linear layers cut over tp. Column-parallel: each rank has some of the out features; row-parallel: some of the in
// features.
//
//   column:  y = enter_tp(norm(x)) w^T         backward: dx = norm'(leave_tp(dy w))
//   row:     y = leave_tp(x w^T)               backward: dx = enter_tp(dy) w
//
// A column-parallel layer may add a bias to y. It is the weight of an input that is 1, and its gradient is summed as
// those of other weights: db = dy^T 1.
//
// The norm in front of a column-parallel layer is part of the function, so that what it makes needs not be kept for
// backward (Recompute::selective): it is made again from what is kept anyway. Saved for backward: activations and
// handles, never a gathered weight. Of an input that is kept for a product in a number format, what is kept is the
// operand that backward multiplies (linear_products.h, keeps_columns).
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <vector>

#include "tessera/nn/norm.h"
#include "tessera/nn/weight.h"

namespace tessera::nn {

struct Factor;

struct ColumnLinear {
  Weight weight;  // [local out, in]
  std::optional<Norm> norm;
  std::optional<Weight> bias;  // vector [local out]; of column_linear only
};
struct NormedLinear {
  at::Tensor y;    // [tokens, local out]
  at::Tensor sum;  // x + residual: the residual stream goes on with it. Undefined without a norm
};
// x, residual: [own tokens, in]; residual may be undefined, and is without a norm. tokens: of the whole microbatch.
NormedLinear column_linear(Context& context, const ColumnLinear& linear, const at::Tensor& x,
                           const at::Tensor& residual, std::int64_t tokens);

struct RowLinear {
  Weight weight;  // [out, local in]
};
// x: [tokens, local in] -> [own tokens, out].
at::Tensor row_linear(Context& context, const RowLinear& linear, const at::Tensor& x);

// The two halves of a column-parallel layer without autograd, for functions that do more.
struct ColumnForward {
  NormedLinear result;
  std::vector<at::Tensor> saved;  // what column_backward takes; result.sum is one of them
  std::int64_t stashed = 0;       // bytes of them: of the rank's own tokens
};
// kept: whether there will be a backward.
ColumnForward column_forward(Context& context, const ColumnLinear& linear, const at::Tensor& x,
                             const at::Tensor& residual, std::int64_t tokens, bool kept);
struct ColumnGradients {
  const Factor& y;  // by its rows and columns
  at::Tensor sum;   // may be undefined
};
// Returns the gradient of x, which is that of the residual too. Produces the weights' gradients.
at::Tensor column_backward(Context& context, const ColumnLinear& linear, const ColumnGradients& gradients,
                           const std::vector<at::Tensor>& saved, std::int64_t tokens);

// The backward products of a column-parallel weight without autograd. gradient: of y [tokens, local out]; input: gives
// x [tokens, in] by its columns, and is asked when the product that gives dx has been enqueued. dx leaves tp while the
// weight's gradient is made and produced. Returns it: [own tokens, in].
at::Tensor linear_backward(Context& context, const Weight& weight, const Factor& gradient,
                           const std::function<Factor()>& input);

}  // namespace tessera::nn
