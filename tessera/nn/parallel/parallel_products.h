// The matrix products of linear layers, combined with the exchange of tokens over tp:
//
//   gathered_product    gathers the tokens of a factor, then multiplies      forward of column layers, dx of row layers
//   scattered_product   multiplies, then sums the ranks' products            forward of row layers, dx of column layers
//
// Under sequence parallelism, a product is computed in chunks of tokens (token_chunks.h). ProductOptions::tp_chunks of
// the context limits the number of chunks. Without sequence parallelism, a product is one chunk, and every rank has all
// tokens of a factor.
//
// With ProductOptions::tp_overlap, tokens are exchanged in pieces (token_pieces.h) while products run. A gathered chunk
// is multiplied as soon as its tokens have arrived. The products of a scattered chunk are sent while later chunks are
// multiplied. The results have the same bits as without overlap. A gathered factor that is quantized after the transfer
// is multiplied only when all tokens have arrived.
#pragma once
#include "tessera/nn/collectives.h"
#include "tessera/nn/layers/linear_products.h"

namespace tessera::nn {

// Returns the chunks of a product of `tokens` tokens. The product's result has `columns` columns on this rank.
std::vector<TokenChunk> product_chunks(const Context& context, std::int64_t tokens, std::int64_t columns);

struct GatheredProduct {
  at::Tensor product;  // [tokens, columns]
  // The factor of all tokens. In a number format, it has the operand by columns if `sides` contains columns.
  Factor factor;
};
// Gathers the tokens of a factor and multiplies the factor by the weight. An input is multiplied as x w^T. A gradient
// is multiplied as dy w. `own` contains this rank's tokens of the factor, as in factor_of_tokens. `sides` must contain
// the rows. Collective over tp.
GatheredProduct gathered_product(const PassState& pass, const Weight& weight, OperandKind kind, const at::Tensor& own,
                                 std::int64_t tokens, ops::Sides sides);

// Multiplies a factor of all tokens as gathered_product does, and sums the products of the tp ranks as leave_tp does.
// Returns the sums of this rank's tokens. Collective over tp.
SummedParts scattered_product(const PassState& pass, const Weight& weight, OperandKind kind, const Factor& factor);
// Starts scattered_product and returns before the last sums are complete, so that compute can do other work.
PendingTensor start_scattered_product(const PassState& pass, const Weight& weight, OperandKind kind,
                                      const Factor& factor);

}  // namespace tessera::nn
