#include "tessera/settings/resolve/tp_tokens.h"

#include <gtest/gtest.h>

#include "tessera/settings/resolve.h"
#include "tessera/settings/resume.h"
#include "tessera/settings/run_mesh.h"
#include "tessera/settings/settings.h"
#include "tests/settings/config_test_support.h"

namespace tessera::settings {
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

// A piece is 1024 tokens of 1024 bf16 numbers divided by tp: 2 MiB / tp.
TEST(TpTokens, TravelInPiecesByDefaultIfThePiecesAreLong) {
  const auto is_long = [](Flags flags, std::int64_t hidden) {
    flags.insert(flags.end(), {"--dtype", "bf16", "--seq-len", "1024"});
    return has_long_pieces(parsed(flags), {.hidden_size = hidden});
  };
  EXPECT_TRUE(is_long({"--tp", "2"}, 1));
  EXPECT_FALSE(is_long({"--tp", "3"}, 4608 - 1));
  EXPECT_TRUE(is_long({"--tp", "3"}, 4608));  // 9 MiB / 3 = 2 * 1.5 MiB
  EXPECT_FALSE(is_long({"--tp", "8"}, 43008 - 1));
  EXPECT_TRUE(is_long({"--tp", "8"}, 43008));  // 84 MiB / 8 = 7 * 1.5 MiB
  EXPECT_TRUE(is_long({"--tp", "8", "--micro-batch", "2"}, 21504));
}

TEST(TpTokens, TravelInPiecesIfTheyAreDividedAndPiecesAreLongOrAskedFor) {
  const auto overlaps = [](const Flags& flags, bool is_long) { return overlaps_tp(parsed(flags), is_long); };
  EXPECT_FALSE(overlaps({}, true));
  EXPECT_TRUE(overlaps({"--tp", "8"}, true));
  EXPECT_FALSE(overlaps({"--tp", "8"}, false));
  EXPECT_TRUE(overlaps({"--tp", "8", "--tp-overlap", "on"}, false));
  EXPECT_FALSE(overlaps({"--tp", "2", "--tp-overlap", "off"}, true));
  EXPECT_FALSE(overlaps({"--tp", "2", "--sequence-parallel", "off"}, true));
  EXPECT_FALSE(overlaps({"--tp", "2", "--sequence-parallel", "off", "--tp-overlap", "on"}, true));
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
}  // namespace tessera::settings
