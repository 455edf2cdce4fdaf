#include "tessera/nn/parallel/token_chunks.h"

#include <algorithm>

#include "tessera/base/ceil_div.h"
#include "tessera/base/error.h"

namespace tessera::nn {
namespace {

// Divides the ranks with tokens into `count` chunks. A rank without tokens belongs to the chunk of the next rank with
// tokens, or to the last chunk.
std::vector<TokenChunk> divide(std::span<const std::int64_t> tokens, const std::vector<std::int64_t>& busy, int count) {
  std::vector<TokenChunk> chunks;
  layout::Range ranks, held;
  for (int i = 0; i < count; ++i) {
    const bool is_last = i + 1 == count;
    const std::int64_t next = layout::even_part(static_cast<std::int64_t>(busy.size()), i, count).end;
    ranks = {.begin = ranks.end,
             .end = is_last ? static_cast<std::int64_t>(tokens.size()) : busy[static_cast<std::size_t>(next - 1)] + 1};
    held = {.begin = held.end, .end = held.end};
    for (std::int64_t rank = ranks.begin; rank < ranks.end; ++rank) held.end += tokens[static_cast<std::size_t>(rank)];
    chunks.push_back({ranks, held});
  }
  return chunks;
}

bool fills_device(const TokenChunk& chunk, std::int64_t columns) {
  return base::ceil_div(chunk.tokens.size(), kTileTokens) * base::ceil_div(columns, kTileColumns) >= kChunkTiles;
}

}  // namespace

std::vector<TokenChunk> token_chunks(std::span<const std::int64_t> tokens, std::int64_t columns, std::int64_t wanted) {
  TESSERA_CHECK(wanted >= 0, "token_chunks: got {} chunks, expected 0 or more", wanted);
  std::vector<std::int64_t> busy;
  for (std::size_t rank = 0; rank < tokens.size(); ++rank)
    if (tokens[rank] > 0) busy.push_back(static_cast<std::int64_t>(rank));
  if (busy.empty()) return {{.ranks = {.begin = 0, .end = static_cast<std::int64_t>(tokens.size())}, .tokens = {}}};
  const auto most = static_cast<int>(busy.size());
  if (wanted != kAutomaticChunks) return divide(tokens, busy, static_cast<int>(std::min<std::int64_t>(wanted, most)));
  for (int count = most; count > 1; --count) {
    std::vector<TokenChunk> chunks = divide(tokens, busy, count);
    if (std::ranges::all_of(chunks, [&](const TokenChunk& it) { return fills_device(it, columns); })) return chunks;
  }
  return divide(tokens, busy, 1);
}

std::vector<TokenChunk> in_order_of_arrival(std::vector<TokenChunk> chunks, int rank, int size) {
  const auto last_piece = [&](const TokenChunk& chunk) {
    std::int64_t last = 0;
    for (std::int64_t source = chunk.ranks.begin; source < chunk.ranks.end; ++source)
      last = std::max(last, (rank - source + size) % size);
    return last;
  };
  std::ranges::stable_sort(chunks, {}, last_piece);
  return chunks;
}

std::vector<TokenChunk> in_order_of_departure(std::vector<TokenChunk> chunks, int rank, int size) {
  const auto first_piece = [&](const TokenChunk& chunk) {
    std::int64_t first = size;  // this rank's own rows are not sent
    for (std::int64_t target = chunk.ranks.begin; target < chunk.ranks.end; ++target)
      if (target != rank) first = std::min(first, (target - rank + size) % size);
    return first;
  };
  std::ranges::stable_sort(chunks, {}, first_piece);
  return chunks;
}

}  // namespace tessera::nn
