#include "tessera/run/config/tp_tokens.h"

#include <gtest/gtest.h>

#include "tessera/run/config/resolve.h"
#include "tessera/run/config/resume.h"
#include "tests/run/config/config_test_support.h"

namespace tessera::run {
namespace {

using testing::parse;
using testing::stored;

TEST(TpTokens, AreDividedByDefaultIfTpExceedsOne) {
  EXPECT_FALSE(splits_tokens(TrainConfig{.tp = 1}));
  EXPECT_FALSE(splits_tokens(TrainConfig{.tp = 1, .sequence_parallel = true}));
  EXPECT_TRUE(splits_tokens(TrainConfig{.tp = 2}));
  EXPECT_FALSE(splits_tokens(TrainConfig{.tp = 2, .sequence_parallel = false}));
}

TEST(TpTokens, TravelInPiecesByDefaultUpToEightRanks) {
  EXPECT_FALSE(overlaps_tp(TrainConfig{.tp = 1}));
  EXPECT_TRUE(overlaps_tp(TrainConfig{.tp = 8}));
  EXPECT_FALSE(overlaps_tp(TrainConfig{.tp = 9}));
  EXPECT_TRUE(overlaps_tp(TrainConfig{.tp = 9, .tp_overlap = true}));
  EXPECT_FALSE(overlaps_tp(TrainConfig{.tp = 2, .tp_overlap = false}));
  EXPECT_FALSE(overlaps_tp(TrainConfig{.tp = 2, .sequence_parallel = false}));
}

// A run that was stored before the default changed keeps its value.
TEST(TpTokens, OfAResumedRunKeepTheStoredSetting) {
  const auto resumed = [](const std::vector<std::string>& before) {
    return resolve_settings(merge_stored(parse({"--out", "o"}), stored(before), "c").config);
  };
  EXPECT_FALSE(splits_tokens(resumed({"--sequence-parallel", "off"})));
  EXPECT_TRUE(splits_tokens(resumed({"--sequence-parallel", "on"})));
  EXPECT_TRUE(splits_tokens(resumed({})));
}

}  // namespace
}  // namespace tessera::run
