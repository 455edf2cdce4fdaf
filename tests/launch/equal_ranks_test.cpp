// Ranks of a run with different settings.
#include "tessera/launch/equal_ranks.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/launch/rank_messages.h"

namespace tessera::launch {
namespace {

using nlohmann::json;
using testing::messages_of;

std::array<std::string, 3> messages(const std::array<json, 3>& values) {
  return messages_of([&](comm::Communicator& all, std::size_t rank) { require_equal(all, values[rank]); });
}

TEST(RanksOfARun, MayHaveEqualValues) {
  EXPECT_THAT(messages({json{{"--lr", 1e-3}}, json{{"--lr", 1e-3}}, json{{"--lr", 1e-3}}}), ::testing::Each(""));
}

TEST(RanksOfARun, AllNameTheFirstDifference) {
  const json first{{"--lr", 1e-3}, {"--seed", 1}}, other{{"--lr", 2e-3}, {"--seed", 2}};
  EXPECT_THAT(
      messages({first, first, other}),
      ::testing::Each("rank 2: --lr: got 0.002, expected 0.001 as on rank 0: start all ranks with the same flags and "
                      "files"));
  EXPECT_THAT(messages({first, other, other}), ::testing::Each(::testing::HasSubstr("rank 1: --lr")));
}

TEST(RanksOfARun, AllNameAMissingValue) {
  const json first{{"the data", 1}, {"the held-out data", 7}}, other{{"the data", 1}};
  EXPECT_THAT(messages({first, other, first}),
              ::testing::Each(::testing::HasSubstr("rank 1: the held-out data: got ")));
  EXPECT_THAT(messages({other, first, other}),
              ::testing::Each(::testing::HasSubstr("rank 1: the held-out data: got 7")));
}

}  // namespace
}  // namespace tessera::launch
