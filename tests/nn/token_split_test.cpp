#include "tessera/nn/token_split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "tessera/base/error.h"

namespace tessera::nn {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(TokenSplit, IsEvenWithoutWeightsOrWithEqualWeights) {
  for (int rank = 0; rank < 5; ++rank) {
    EXPECT_EQ(TokenSplit{}.part(23, rank, 5), layout::even_part(23, rank, 5));
    EXPECT_EQ((TokenSplit{{9, 9, 9, 9, 9}}).part(23, rank, 5), layout::even_part(23, rank, 5));
  }
}

TEST(TokenSplit, PartsAreConsecutiveAndProportionalToTheWeights) {
  for (const std::vector<std::int64_t>& weights :
       std::vector<std::vector<std::int64_t>>{{1}, {3, 1}, {0, 2, 1}, {2, 0, 0}, {5, 0, 7, 1}})
    for (std::int64_t tokens = 0; tokens < 40; ++tokens) {
      const std::int64_t total = std::accumulate(weights.begin(), weights.end(), std::int64_t{0});
      std::int64_t next = 0, before = 0;
      for (std::size_t rank = 0; rank < weights.size(); ++rank) {
        before += weights[rank];
        const layout::Range part =
            TokenSplit{weights}.part(tokens, static_cast<int>(rank), static_cast<int>(weights.size()));
        ASSERT_EQ(part, (layout::Range{next, tokens * before / total}));
        next = part.end;
      }
      ASSERT_EQ(next, tokens);
    }
}

TEST(TokenSplit, IsExactIfTheProductWouldOverflow) {
  const std::int64_t many = std::int64_t{1} << 62, heavy = std::int64_t{1} << 30;
  EXPECT_EQ((TokenSplit{{heavy, heavy}}).part(many, 1, 2), (layout::Range{many / 2, many}));
}

TEST(TokenSplit, RefusesInvalidWeights) {
  EXPECT_THAT(
      [&] {
        (TokenSplit{{1, 1}}).part(4, 0, 3);
      },
      ThrowsMessage<Error>(HasSubstr("has weights for 2 tp ranks, expected 3")));
  EXPECT_THAT(
      [&] {
        (TokenSplit{{1, -1}}).part(4, 0, 2);
      },
      ThrowsMessage<Error>(HasSubstr("has weight -1 for tp rank 1")));
  EXPECT_THAT(
      [&] {
        (TokenSplit{{0, 0}}).part(4, 0, 2);
      },
      ThrowsMessage<Error>(HasSubstr("sum to 0, expected [1, 2147483648]")));
  EXPECT_THAT(
      [&] {
        (TokenSplit{{std::int64_t{1} << 31, 1}}).part(4, 0, 2);
      },
      ThrowsMessage<Error>(HasSubstr("sum to 2147483649")));
  EXPECT_THAT([&] { (TokenSplit{{1, 1}}).part(4, 2, 2); }, ThrowsMessage<Error>(HasSubstr("part 2, expected [0, 2)")));
}

}  // namespace
}  // namespace tessera::nn
