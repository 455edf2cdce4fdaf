// Scales of the matrices of a stack's products (ops/grouped/grouped_formats.h): the rows that each matrix multiplies.
#pragma once
#include "tessera/nn/layers/linear_products.h"
#include "tessera/nn/weight.h"
#include "tessera/ops/grouped/grouped_formats.h"

namespace tessera::nn {

// Whether some rank of the compute group has only a part of the rows or of the columns of a matrix. Equal on all ranks.
struct StackCut {
  bool rows = false, cols = false;
};
StackCut cut_of(const Context& context, const Weight& weight);

struct AmaxReduction {
  std::int64_t each = 1;  // number of amaxes of each matrix of the stack
  bool is_event = true;   // whether the reduction is recorded as an event of the step
};
// The ranks of the compute group have parts of the same matrices. Returns the amaxes of the whole matrices of this
// rank. Collective over the compute group of the weight's domain. The message has the amaxes of all matrices of the
// stack.
at::Tensor greatest_of_parts(const PassState& pass, const Weight& weight, const ops::Selection& selection,
                             const at::Tensor& amaxes, const AmaxReduction& how);

// Returns the matrices of a consumed stack for products in a number format, by rows or by columns. The result is valid
// as long as `consumed` exists. May be collective over the compute group of the weight's domain.
ops::StackFactor stack_of(const PassState& pass, const Weight& weight, const ConsumedWeight& consumed, ops::Sides side,
                          const ops::Selection& selection);

// Returns how rows are quantized for a product in the weight's number format. The rows are inputs of the layer or
// gradients of its output. May be collective over the compute group of the weight's domain.
ops::RowQuantization row_quantization(const PassState& pass, const Weight& weight, OperandKind kind,
                                      const at::Tensor& rows, const ops::Selection& selection,
                                      ops::RowMatrices matrices);

}  // namespace tessera::nn
