// The factors of the products of experts in number formats (grouped_formats.h).
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
// The matrices of the local experts [out, in] as a factor of fprop or of dgrad: decoded values, or codes on a GPU. The
// tiles of `encoding` extend along the dimension over which the product sums, or they are square.
struct StackFactor {
  at::Tensor values;  // [local * out, in] in bf16
  at::Tensor codes;   // fprop: [local, out, in] bytes; dgrad: the transposed matrices [local, in, out]
  quant::Encoding encoding;
  at::Tensor whole;  // [local]: the numbers of product_alpha; undefined if alpha does not depend on the matrices
};

// The rows of a factor of wgrad.
struct RowFactor {
  const at::Tensor& rows;
  const RowQuantization& as;
};

}  // namespace tessera::ops
