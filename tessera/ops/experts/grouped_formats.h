// The matrix products of experts in number formats. `w` stacks the matrices of the local experts by rows.
//
// Every device multiplies decoded values (quant/formats/decoded.h), in every format:
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
//
// Throws Error if shapes or types do not match.
#pragma once
#include "tessera/ops/gemm/operand_types.h"
#include "tessera/ops/router/selection.h"
#include "tessera/quant/formats/encoding.h"
#include "tessera/quant/formats/stochastic_rounding.h"

namespace tessera::ops {

// Which rows form a matrix: the rows of one expert in one block, or of one expert in all blocks.
enum class RowMatrices : std::uint8_t { blocks, experts };
// Returns the number of matrices of a selection's rows. Matrices are ordered by expert, then block.
inline std::int64_t matrices_of(const Selection& selection, RowMatrices matrices) {
  return matrices == RowMatrices::blocks ? selection.local * selection.blocks : selection.local;
}

// GPU: in wgrad, the rows of an expert begin at a multiple of this number.
inline constexpr std::int64_t kExpertRows = 16;

// How the rows of experts are quantized. The encoding is that of an operand by rows. The tensors of `whole` have one
// number for each matrix of rows, or one number for all rows. If `amax` is not null, fprop and dgrad raise *amax to the
// greatest magnitude of all rows; `amax` is in memory of the rows' device.
struct RowQuantization {
  quant::Encoding encoding;
  WholeScale whole;
  float* amax = nullptr;
  // The recipe of nvfp4, for tiles of 1 x 16. transform: wgrad transforms the rows of each expert, in groups of 16 from
  // the first row of the expert. `whole` then has the amaxes of the transformed rows.
  bool transform = false;
  // Matrix i is local expert i. fprop and dgrad: row r is rounded as token first_token + t, where t is the token of the
  // row in the selection. wgrad: row i of an expert is rounded as token first_token + i.
  quant::StackRounding rounding;
};
// The matrices of the local experts as decoded values [local * out, in] in bf16. The tiles of `encoding` extend along
// the dimension over which the product sums, or they are square.
struct DecodedStack {
  at::Tensor values;
  quant::Encoding encoding;
  at::Tensor whole;  // [local]: the numbers of product_alpha; undefined if alpha does not depend on the matrices
};

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
DecodedStack decode_stack(const at::Tensor& stack, std::int64_t matrices, const quant::Encoding& encoding,
                          const WholeScale& whole);

// x: [room, in] in bf16. Returns [room, out] in bf16. Rows of the result after the selected rows are undefined.
at::Tensor grouped_fprop(const at::Tensor& x, const RowQuantization& as, const DecodedStack& w,
                         const Selection& selection);
// dy: [room, out]. Returns [room, in].
at::Tensor grouped_dgrad(const at::Tensor& dy, const RowQuantization& as, const DecodedStack& w,
                         const Selection& selection);
struct RowFactor {
  const at::Tensor& rows;
  const RowQuantization& as;
};
// Computes dw [local * out, in]. The tensors of `whole` have one number for each expert. Types and `accumulate` have
// the meaning of grouped_wgrad in grouped.h. The gradient of an expert without rows is zero.
void grouped_wgrad(const RowFactor& dy, const RowFactor& x, const Selection& selection, at::Tensor& dw,
                   bool accumulate);

}  // namespace tessera::ops
