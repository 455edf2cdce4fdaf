// The products of a stack of matrices, such as the matrices of experts. Each matrix is multiplied by its own rows:
//
//   y = x w_e^T for the rows x of matrix e         backward: dx = dy w_e,  dw_e = dy^T x
//
// The stack is gathered before each use, and its gradient is reduced to the shards, like the weights of other layers.
// The caller selects the rows of each matrix with a router of its own, and moves values between tokens and rows
// (ops/router/selection.h).
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "tessera/nn/weight.h"
#include "tessera/ops/router/selection.h"

namespace tessera::nn {

struct GroupedLinear {
  // The matrices of this rank, stacked by rows: [local * out, in]. The dims of the parameter are [matrices, out, in].
  Weight weight;
};
// rows: [selection.room, in], with a gradient. Returns [selection.room, out]. Rows after the selected rows are
// undefined. An expert of `selection` is a matrix of the stack. The tokens of `selection` are the tokens of all compute
// ranks of the parameter's domain. Throws Error if the parameter is not a stack, and the errors of
// ops/grouped/grouped.h.
at::Tensor grouped_linear(const PassState& pass, const GroupedLinear& layer, const at::Tensor& rows,
                          const ops::Selection& selection);

// The forward and backward of grouped_linear without autograd, for functions that contain more than this layer.
struct GroupedRows {
  ops::Selection selection;
  std::int64_t own_rows = 0;  // rows of this rank's own tokens, which other ranks may multiply
};
// Returns y. Consumes the weight in the pass.
at::Tensor grouped_fprop(const PassState& pass, const Weight& weight, const at::Tensor& x, const GroupedRows& rows);
// Returns dx. Releases the weight before the gradient of the weight is computed, so that the memory of the weight is
// free during this computation.
at::Tensor grouped_dgrad(const PassState& pass, const Weight& weight, const at::Tensor& dy, const GroupedRows& rows);
// Computes dw. Produces the weight's gradient; does nothing for a frozen weight.
void grouped_wgrad(const PassState& pass, const Weight& weight, const at::Tensor& dy, const at::Tensor& x,
                   const GroupedRows& rows);

}  // namespace tessera::nn
