// The matrix products of experts in number formats. `w` stacks the matrices of the local experts by rows.
//
// Products multiply decoded values (quant/formats/decoded.h), in every format. In fp8, a GPU can multiply e4m3 codes
// instead (quant/formats/stack_kernels.h):
//
//   y = x w^T     rows of x, rows of w
//   dx = dy w     rows of dy, columns of w
//   dw = dy^T x   columns of dy, columns of x; both may be transformed first (quant/formats/hadamard.h)
//
// A matrix of rows is quantized alone, so its scales and codes depend on no other expert. In fprop and dgrad, a matrix
// has the rows of one expert in one block. In wgrad, a matrix has the rows of one expert in all blocks. Each product is
// alpha (quant::product_alpha) times the fp32 sum of the products of decoded values.
//
//   CPU  One product for each expert and block. alpha times the sum is rounded to fp32, and then to the result's type.
//   GPU  One grouped product in bf16. alpha is multiplied into the values of x (fprop) or of dy (dgrad, wgrad), and
//        each product is rounded to fp32 and then to bf16. In wgrad, the rows of an expert begin at multiples of
//        kExpertRows, with zeros between.
//        Products of codes: the fp32 sum is multiplied by alpha, rounded to fp32, and rounded to bf16. fprop adds with
//        fewer bits.
//
// Throws Error if shapes or types do not match.
#pragma once
#include "tessera/ops/grouped/grouped_types.h"

namespace tessera::ops {

// Return the greatest magnitude of each matrix, fp32. NaNs are ignored. The amax of a matrix without rows is 0.
// transform: as in RowQuantization, for the matrices of experts.
at::Tensor amaxes_of_rows(const at::Tensor& rows, const Selection& selection, RowMatrices matrices,
                          bool transform = false);
at::Tensor amaxes_of_stack(const at::Tensor& stack, std::int64_t matrices);
// Computes the WholeScale of each matrix from its amax, as whole_scale of operand.h does.
WholeScale grouped_scales(const quant::Encoding& encoding, const at::Tensor& amaxes);
// Returns the numbers of product_alpha of matrices with these scales; undefined if the encoding has none.
at::Tensor numbers_of(const quant::Encoding& encoding, const WholeScale& whole);

// Quantizes and decodes each matrix of a stack [matrices * out, in] in bf16. `whole` has one number for each matrix.
StackFactor decode_stack(const at::Tensor& stack, std::int64_t matrices, const quant::Encoding& encoding,
                         const WholeScale& whole);
// The same as codes of an encoding with one scale per matrix, by rows for fprop or by columns for dgrad. A CPU decodes.
StackFactor code_stack(const at::Tensor& stack, std::int64_t matrices, const quant::Encoding& encoding,
                       const WholeScale& whole, Sides side);
// A stack of matrices with e4m3 codes and one scale each. `planes` are arrays on the device, which must remain
// unchanged as long as a factor of the stack is used.
struct StoredStack {
  quant::Quantized planes;
  quant::Extent matrix;
  std::int64_t matrices = 0;
  quant::Encoding encoding;
};
// Returns the stack as a factor for `kernel`; its codes are for fprop. A CPU decodes.
StackFactor stored_stack(const StoredStack& stack, quant::ProductKernel kernel, at::Device device);
// Returns the codes of a stack for dgrad, from the columnwise copy of its matrices (quant/formats/columnwise.h), which
// must remain unchanged too. `stack.planes` are those of the copy. A CPU decodes.
StackFactor copied_stack(const StoredStack& stack, at::Device device);

// x: [room, in] in bf16. Returns [room, out] in bf16. Rows of the result after the selected rows are undefined.
at::Tensor grouped_fprop(const at::Tensor& x, const RowQuantization& as, const StackFactor& w,
                         const Selection& selection);
// dy: [room, out]. Returns [room, in].
at::Tensor grouped_dgrad(const at::Tensor& dy, const RowQuantization& as, const StackFactor& w,
                         const Selection& selection);
// Computes dw [local * out, in]. The tensors of `whole` have one number for each expert. Types and `accumulate` have
// the meaning of grouped_wgrad in grouped.h. The gradient of an expert without rows is zero. A CPU multiplies decoded
// values with every kernel.
void grouped_wgrad(const RowFactor& dy, const RowFactor& x, const Selection& selection, at::Tensor& dw, bool accumulate,
                   quant::ProductKernel kernel = quant::ProductKernel::decoded);

}  // namespace tessera::ops
