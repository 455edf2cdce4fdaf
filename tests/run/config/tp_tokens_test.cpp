#include "tessera/run/config/tp_tokens.h"

#include <gtest/gtest.h>

#include "tessera/run/config/resolve.h"
#include "tessera/run/config/resume.h"
#include "tessera/run/config/settings.h"
#include "tests/run/config/config_test_support.h"

namespace tessera::run {
namespace {

using Flags = std::vector<std::string>;

TrainConfig parsed(Flags flags) {
  flags.insert(flags.end(), {"--model", "m", "--data", "d", "--out", "o", "--steps", "2"});
  return parse(flags);
}

TEST(TpTokens, AreDividedByDefaultIfTpExceedsOne) {
  EXPECT_FALSE(splits_tokens(parsed({})));
  EXPECT_FALSE(splits_tokens(parsed({"--sequence-parallel", "on"})));
  EXPECT_TRUE(splits_tokens(parsed({"--tp", "2"})));
  EXPECT_FALSE(splits_tokens(parsed({"--tp", "2", "--sequence-parallel", "off"})));
}

TEST(TpTokens, TravelInPiecesByDefaultUpToEightRanks) {
  EXPECT_FALSE(overlaps_tp(parsed({})));
  EXPECT_TRUE(overlaps_tp(parsed({"--tp", "8"})));
  EXPECT_FALSE(overlaps_tp(parsed({"--tp", "9"})));
  EXPECT_TRUE(overlaps_tp(parsed({"--tp", "9", "--tp-overlap", "on"})));
  EXPECT_FALSE(overlaps_tp(parsed({"--tp", "2", "--tp-overlap", "off"})));
  EXPECT_FALSE(overlaps_tp(parsed({"--tp", "2", "--sequence-parallel", "off"})));
}

TEST(TpTokens, OfAResumedRunKeepTheStoredSetting) {
  const auto resumed = [](Flags before) {
    before.insert(before.end(), {"--tp", "2"});
    const auto stored = to_json(resolve_ranks(resolve_settings(parsed(before)), std::nullopt));
    return resolve_settings(merge_stored(parse({"--out", "o"}), stored, "c").config);
  };
  EXPECT_FALSE(splits_tokens(resumed({"--sequence-parallel", "off"})));
  EXPECT_TRUE(splits_tokens(resumed({"--sequence-parallel", "on"})));
  EXPECT_TRUE(splits_tokens(resumed({})));
}

}  // namespace
}  // namespace tessera::run
