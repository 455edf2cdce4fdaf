// Divides a matrix product of all tokens into several products of fewer tokens, so that the tokens of other tp ranks
// can be transferred while a product runs. The chunks depend only on shapes and on a setting. Products therefore have
// the same bits, whether or not transfers overlap with the products.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "tessera/layout/layout.h"

namespace tessera::nn {

// The consecutive tokens of consecutive tp ranks that are multiplied in one product.
struct TokenChunk {
  layout::Range ranks, tokens;
  bool operator==(const TokenChunk&) const = default;
};

// The value of ProductOptions::tp_chunks for automatic chunks.
inline constexpr std::int64_t kAutomaticChunks = 0;
// The smallest size of an automatic chunk, in output tiles of 128 tokens and 256 columns. On H200s, chunks of this size
// were faster than larger ones, because transfers overlap with the products of the other chunks (docs/performance.md).
inline constexpr std::int64_t kChunkTiles = 32, kTileTokens = 128, kTileColumns = 256;

// Divides the ranks with tokens into chunks as evenly as possible (layout::even_part). Returns at least one chunk. The
// chunks cover all ranks and all tokens in order. `tokens` contains the number of tokens of each tp rank. `columns` is
// the number of columns of the product's result on this rank. `wanted` is the largest number of chunks. There are at
// most as many chunks as ranks with tokens. kAutomaticChunks gives the largest number of chunks with at least
// kChunkTiles tiles each. Throws Error if `wanted` is negative.
std::vector<TokenChunk> token_chunks(std::span<const std::int64_t> tokens, std::int64_t columns, std::int64_t wanted);

// Return the chunks in the order in which rank `rank` of `size` ranks multiplies them if tokens are exchanged in pieces
// (token_pieces.h). in_order_of_arrival sorts by the last piece that brings tokens of a chunk. in_order_of_departure
// sorts by the first piece that sends rows of a chunk.
std::vector<TokenChunk> in_order_of_arrival(std::vector<TokenChunk> chunks, int rank, int size);
std::vector<TokenChunk> in_order_of_departure(std::vector<TokenChunk> chunks, int rank, int size);

}  // namespace tessera::nn
