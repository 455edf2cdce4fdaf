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

// The products of Llama-3-8B at tp 2: 4096 columns (output, down), 3072 (qkv), 14336 (gate_up), 7168 (dgrad of down).
TEST(TokenChunks, AutomaticChunksFillTheDeviceTwice) {
  EXPECT_THAT(sizes_of({4096, 4096}, 4096, kAutomaticChunks), ElementsAre(4096, 4096));   // 512 tiles each
  EXPECT_THAT(sizes_of({1024, 1024}, 4096, kAutomaticChunks), ElementsAre(2048));         // 128
  EXPECT_THAT(sizes_of({1024, 1024}, 3072, kAutomaticChunks), ElementsAre(2048));         // 96
  EXPECT_THAT(sizes_of({1024, 1024}, 14336, kAutomaticChunks), ElementsAre(1024, 1024));  // 448
  EXPECT_THAT(sizes_of({1024, 1024}, 7168, kAutomaticChunks), ElementsAre(2048));         // 224
  // 264 tiles are 33 rows of 8; the last row may be partial.
  EXPECT_THAT(sizes_of({4097, 4097}, 1793, kAutomaticChunks), ElementsAre(4097, 4097));
  EXPECT_THAT(sizes_of({4097, 4096}, 1793, kAutomaticChunks), ElementsAre(8193));
  EXPECT_THAT(sizes_of({4097, 4097}, 1792, kAutomaticChunks), ElementsAre(8194));
}

TEST(TokenChunks, NeighboursAreMergedUntilEveryChunkIsLargeEnough) {
  EXPECT_THAT(sizes_of({2048, 2048, 2048, 2048}, 4096, kAutomaticChunks), ElementsAre(4096, 4096));
  EXPECT_THAT(sizes_of({2304, 2304, 2304, 2304}, 4096, kAutomaticChunks), ElementsAre(2304, 2304, 2304, 2304));
  EXPECT_THAT(sizes_of({2304, 2304, 2304}, 3840, kAutomaticChunks), ElementsAre(2304, 2304, 2304));
  EXPECT_THAT(sizes_of({2304, 2304, 2303}, 3584, kAutomaticChunks), ElementsAre(6911));
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
