// Linear layers sharded over tp. In a column-parallel layer each rank has some of the out features. In a row-parallel
// layer each rank has some of the in features.
//
//   column:  y = gathered(norm(x)) w^T         backward: dx = norm'(scattered(dy w))
//   row:     y = scattered(x w^T)              backward: dx = gathered(dy) w
//
// The operations gathered and scattered are the tp transfers of gathered_product and scattered_product
// (parallel_products.h).
//
// A column-parallel layer may add a bias to y. The bias is treated as a weight with the constant input 1. Its gradient
// db = dy^T 1 is summed like the gradients of other weights.
//
// The norm before a column-parallel layer is part of the layer's autograd function, so that the norm's output need not
// be kept (Recompute::selective). Backward recomputes the norm's output from tensors that are kept anyway. Forward
// saves activations and pointers to modules for backward, but never a gathered weight. For a product in a number
// format, forward may save an operand of the backward product instead of the input (keeps_columns in
// linear_products.h).
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <vector>

#include "tessera/nn/layers/norm.h"
#include "tessera/nn/weight.h"

namespace tessera::nn {

struct Factor;

struct ColumnLinear {
  Weight weight;  // [local out, in]
  std::optional<Norm> norm;
  std::optional<Weight> bias;  // vector [local out]; only column_linear uses it
};
struct NormedLinear {
  at::Tensor y;    // [tokens, local out]
  at::Tensor sum;  // x + residual, the next value of the residual stream; undefined without a norm
};
// x, residual: [own tokens, in]. `residual` may be undefined; without a norm it must be undefined. tokens: number of
// tokens in the whole microbatch.
NormedLinear column_linear(const PassState& pass, const ColumnLinear& linear, const SummedParts& x,
                           const at::Tensor& residual, std::int64_t tokens);

struct RowLinear {
  Weight weight;  // [out, local in]
};
// x: [tokens, local in] -> [own tokens, out].
SummedParts row_linear(const PassState& pass, const RowLinear& linear, const at::Tensor& x);

// The forward and backward of a column-parallel layer without autograd, for functions that contain more than this
// layer.
struct ColumnForward {
  NormedLinear result;
  std::vector<at::Tensor> saved;          // argument of column_backward; includes result.sum
  std::vector<runtime::StashItem> items;  // items of `saved` for this rank's own tokens
};
// x: the list of a matrix's parts (SummedParts); without a norm, one matrix. kept: whether backward will read the saved
// tensors.
ColumnForward column_forward(const PassState& pass, const ColumnLinear& linear, at::TensorList x,
                             const at::Tensor& residual, std::int64_t tokens, bool kept);
// Returns x as an argument of column_forward.
SummedParts input_of(const PassState& pass, const ColumnLinear& linear, const SummedParts& x);
struct ColumnGradients {
  const Factor& y;  // gradient of NormedLinear::y, quantized by rows and by columns
  at::Tensor sum;   // gradient of NormedLinear::sum; may be undefined
};
// Returns the gradients of x and of the residual. Produces the gradients of the layer's weights.
ops::RmsNormGradients column_backward(const PassState& pass, const ColumnLinear& linear,
                                      const ColumnGradients& gradients, const std::vector<at::Tensor>& saved,
                                      std::int64_t tokens);

// The backward products of a column-parallel weight, without autograd. `gradient` is the gradient of y [tokens, local
// out]. `input` returns x [tokens, in] by columns; `input` is called after the product for dx has been enqueued. The
// weight's gradient is computed and produced while dx is summed over tp. Returns dx: [own tokens, in].
SummedParts linear_backward(const PassState& pass, const Weight& weight, const Factor& gradient,
                            const std::function<Factor()>& input);

}  // namespace tessera::nn
