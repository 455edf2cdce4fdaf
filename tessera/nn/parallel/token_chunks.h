// How a product of all tokens is computed as several products of fewer tokens, so that tokens of other tp ranks can
// travel meanwhile. The chunks are part of a product's definition: they follow from shapes and from a setting, never
// from a transfer, so products have the same bits whether transfers overlap with them or not.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "tessera/layout/layout.h"

namespace tessera::nn {

// Consecutive tokens that belong to consecutive tp ranks and are multiplied together.
struct TokenChunk {
  layout::Range ranks, tokens;
  bool operator==(const TokenChunk&) const = default;
};

// The setting for automatic chunks.
inline constexpr std::int64_t kAutomaticChunks = 0;
// Automatic chunks have at least this many tiles of 128 tokens and 256 columns: two for each of the 132 multiprocessors
// of an H100.
inline constexpr std::int64_t kChunkTiles = 264, kTileTokens = 128, kTileColumns = 256;

// tokens: by tp rank, in the order of the ranks. columns: of the product's result on this rank. wanted: the greatest
// number of chunks; kAutomaticChunks gives the most chunks, at most one for each rank with tokens, that all have
// kChunkTiles tiles. Chunks divide the ranks with tokens as evenly as possible (layout::even_part). Returns at least
// one chunk; the chunks cover all ranks and all tokens in order. Throws Error if `wanted` is negative.
std::vector<TokenChunk> token_chunks(std::span<const std::int64_t> tokens, std::int64_t columns, std::int64_t wanted);

// The orders in which rank `rank` of `size` ranks multiplies chunks if tokens travel in pieces (token_pieces.h): by the
// last piece that brings tokens of a chunk, and by the first piece that takes rows of a chunk away.
std::vector<TokenChunk> in_order_of_arrival(std::vector<TokenChunk> chunks, int rank, int size);
std::vector<TokenChunk> in_order_of_departure(std::vector<TokenChunk> chunks, int rank, int size);

}  // namespace tessera::nn
