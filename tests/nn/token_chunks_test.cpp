#include "tessera/nn/parallel/token_chunks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::nn {
namespace {

using testing::ElementsAre;

std::vector<std::int64_t> sizes_of(const std::vector<std::int64_t>& tokens, std::int64_t columns, std::int64_t wanted) {
  std::vector<std::int64_t> sizes;
  for (const TokenChunk& chunk : token_chunks(tokens, columns, wanted)) sizes.push_back(chunk.tokens.size());
  return sizes;
}

// The products of Llama-3-8B at tp 2: 4096 columns (output, down), 3072 (qkv), 14336 (gate_up), 2048 (dgrad of output).
TEST(TokenChunks, AutomaticChunksAreLargeEnough) {
  EXPECT_THAT(sizes_of({4096, 4096}, 4096, kAutomaticChunks), ElementsAre(4096, 4096));  // 512 tiles each
  EXPECT_THAT(sizes_of({512, 512}, 2048, kAutomaticChunks), ElementsAre(512, 512));      // 32
  EXPECT_THAT(sizes_of({512, 512}, 1792, kAutomaticChunks), ElementsAre(1024));          // 28
  EXPECT_THAT(sizes_of({256, 256}, 3072, kAutomaticChunks), ElementsAre(512));           // 24
  EXPECT_THAT(sizes_of({256, 256}, 14336, kAutomaticChunks), ElementsAre(256, 256));     // 112
  // 32 tiles are 4 rows of 8; the last row and column may be partial.
  EXPECT_THAT(sizes_of({385, 385}, 1793, kAutomaticChunks), ElementsAre(385, 385));
  EXPECT_THAT(sizes_of({385, 384}, 1793, kAutomaticChunks), ElementsAre(769));
  EXPECT_THAT(sizes_of({385, 385}, 1792, kAutomaticChunks), ElementsAre(770));
}

TEST(TokenChunks, NeighboursAreMergedUntilEveryChunkIsLargeEnough) {
  EXPECT_THAT(sizes_of({256, 256, 256, 256}, 4096, kAutomaticChunks), ElementsAre(256, 256, 256, 256));
  EXPECT_THAT(sizes_of({256, 256, 256, 256}, 2048, kAutomaticChunks), ElementsAre(512, 512));
  EXPECT_THAT(sizes_of({256, 256, 256}, 4096, kAutomaticChunks), ElementsAre(256, 256, 256));
  EXPECT_THAT(sizes_of({256, 256, 128}, 3840, kAutomaticChunks), ElementsAre(640));
}

TEST(TokenChunks, ASettingGivesAtMostOneChunkForEachRankWithTokens) {
  EXPECT_THAT(sizes_of({2, 2, 3}, 5, 1), ElementsAre(7));
  EXPECT_THAT(sizes_of({2, 2, 3}, 5, 2), ElementsAre(2, 5));
  EXPECT_THAT(sizes_of({2, 2, 3}, 5, 3), ElementsAre(2, 2, 3));
  EXPECT_THAT(sizes_of({2, 2, 3}, 5, 99), ElementsAre(2, 2, 3));
  EXPECT_THAT(sizes_of({0, 2, 0, 1}, 5, 4), ElementsAre(2, 1));
  EXPECT_THAT(sizes_of({1, 0}, 5, 2), ElementsAre(1));
  EXPECT_THAT(sizes_of({0, 0}, 5, 2), ElementsAre(0));
  EXPECT_THROW(token_chunks(std::vector<std::int64_t>{1}, 5, -1), Error);
}

TEST(TokenChunks, CoverAllRanksAndTokensInOrder) {
  for (const std::vector<std::int64_t>& tokens :
       {std::vector<std::int64_t>{3, 0, 0, 5, 1, 0}, {0, 0, 4}, {0}, {7, 7, 7, 7}, {0, 9, 0}})
    for (const std::int64_t wanted : {0, 1, 2, 3, 4}) {
      std::int64_t rank = 0, token = 0;
      for (const TokenChunk& chunk : token_chunks(tokens, 4, wanted)) {
        EXPECT_EQ(chunk.ranks.begin, rank);
        EXPECT_EQ(chunk.tokens.begin, token);
        for (; rank < chunk.ranks.end; ++rank) token += tokens[static_cast<std::size_t>(rank)];
        EXPECT_EQ(chunk.tokens.end, token);
      }
      EXPECT_EQ(rank, static_cast<std::int64_t>(tokens.size()));
    }
}

}  // namespace
}  // namespace tessera::nn
