// The products of linear layers together with the transfer of their tokens over tp:
//
//   gathered_product    gathers the tokens of a factor, then multiplies      forward of column layers, dx of row layers
//   scattered_product   multiplies, then sums the ranks' products            forward of row layers, dx of column layers
//
// Under sequence parallelism a product is computed in chunks of tokens (token_chunks.h), whose number the context's
// ProductOptions::tp_chunks sets. Without sequence parallelism a product is one chunk, and a factor has all tokens.
//
// With ProductOptions::tp_overlap, tokens travel in pieces (token_pieces.h) beside the products: a chunk is multiplied
// as soon as its tokens have arrived, and its sums leave while later chunks are multiplied. The bits are the same. A
// gathered factor that is quantized after the transfer is multiplied when all tokens have arrived.
#pragma once
#include "tessera/nn/collectives.h"
#include "tessera/nn/linear_products.h"

namespace tessera::nn {

// Returns the chunks of a product of `tokens` tokens whose result has `columns` columns on this rank.
std::vector<TokenChunk> product_chunks(const Context& context, std::int64_t tokens, std::int64_t columns);

struct GatheredProduct {
  at::Tensor product;  // [tokens, columns]
  Factor factor;       // of all tokens; in a number format by columns, if `sides` contains them
};
// own: this rank's tokens of the factor, as in factor_of_tokens. sides: contains the rows. An input gives x w^T in the
// context's pass; a gradient gives dy w in the backward pass. Collective over tp.
GatheredProduct gathered_product(Context& context, const Weight& weight, Role role, const at::Tensor& own,
                                 std::int64_t tokens, ops::Sides sides);

// Multiplies a factor of all tokens as above, and sums the products of the tp ranks as leave_tp does. The result holds
// this rank's tokens. Collective over tp.
at::Tensor scattered_product(Context& context, const Weight& weight, Role role, const Factor& factor);
// Starts the last sums, so that compute can do other work meanwhile.
PendingTensor start_scattered_product(Context& context, const Weight& weight, Role role, const Factor& factor);

}  // namespace tessera::nn
