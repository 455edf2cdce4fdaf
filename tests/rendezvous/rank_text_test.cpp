#include "tessera/rendezvous/rank_text.h"

#include <gtest/gtest.h>

namespace tessera::rendezvous {
namespace {

TEST(RankText, ThreeConsecutiveRanksAreARange) {
  const auto text = [](const std::vector<int>& ranks) { return rank_list(ranks); };
  EXPECT_EQ(text({}), "");
  EXPECT_EQ(text({7}), "7");
  EXPECT_EQ(text({0, 1}), "0,1");
  EXPECT_EQ(text({0, 1, 2}), "0-2");
  EXPECT_EQ(text({0, 2, 3, 4, 5, 7, 8}), "0,2-5,7,8");
  EXPECT_EQ(text({4, 5, 3, 2, 1}), "4,5,3,2,1");
  EXPECT_EQ(text({1, 3, 5}), "1,3,5");
  EXPECT_EQ(text({5, 0, 1, 2}), "5,0-2");
  EXPECT_EQ(group_label("gtp", std::vector{0, 2}), "gtp[0,2]");
  EXPECT_EQ(group_label("world", std::vector{0, 1, 2, 3, 4, 5, 6, 7}), "world[0-7]");
}

TEST(RankText, RanksWithTheSameAnswerAreJoined) {
  using Answers = std::vector<std::pair<int, std::string>>;
  EXPECT_EQ(answers_text(Answers{}), "");
  EXPECT_EQ(answers_text(Answers{{1, "no answer"}}), "rank 1: no answer");
  EXPECT_EQ(
      answers_text(Answers{{0, "at graph #12"}, {2, "no answer"}, {3, "at graph #12"}, {4, ""}, {5, "no answer"}}),
      "ranks 0,3: at graph #12; ranks 2,5: no answer; rank 4: ");
  Answers many;
  for (int rank = 0; rank < 1000; ++rank) many.emplace_back(rank, rank == 500 ? "no answer" : "at barrier #0");
  EXPECT_EQ(answers_text(many), "ranks 0-499,501-999: at barrier #0; rank 500: no answer");
}

}  // namespace
}  // namespace tessera::rendezvous
