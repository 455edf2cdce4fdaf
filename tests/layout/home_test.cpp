#include "tessera/layout/home.h"

#include <gtest/gtest.h>

#include "dense_reference.h"
#include "random_layouts.h"
#include "tessera/base/error.h"

namespace tessera::layout {
namespace {

TEST(UniqueHome, KeepsEachElementOnItsLowestHolder) {
  for (int i = 0; i < testing::iterations(3000); ++i) {
    testing::Random random(static_cast<std::uint64_t>(i));
    const Layout layout = testing::random_any(random, testing::random_shape(random), random.small(1, 7));
    const Layout home = unique_home(layout);
    ASSERT_NO_THROW(validate(home)) << i;
    const auto before = testing::holders(layout), after = testing::holders(home);
    for (std::size_t e = 0; e < before.size(); ++e) {
      const auto lowest = before[e].empty() ? std::vector<int>{} : std::vector<int>{before[e].front()};
      ASSERT_EQ(after[e], lowest) << i;
    }
    for (const LocalLayout& local : home.ranks) ASSERT_EQ(local.covered(), local.size) << i << ": not dense";
    ASSERT_EQ(unique_home(home), home) << i;
  }
}

TEST(UniqueHome, KeepsTheOrderOfRows) {
  const Layout layout = rows_by_rank({10, 2}, {{{4, 6}}, {{8, 10}, {3, 8}, {0, 2}}});
  EXPECT_EQ(unique_home(layout), rows_by_rank({10, 2}, {{{4, 6}}, {{8, 10}, {3, 4}, {6, 8}, {0, 2}}}));
}

TEST(UniqueHome, IsNeverPartialAndRefusesInvalidLayouts) {
  Layout layout = replicated({3, 2}, 2);
  layout.state = State::partial;
  EXPECT_EQ(unique_home(layout).state, State::replicated);
  layout.ranks[0].size = 1;
  EXPECT_THROW(unique_home(layout), Error);
}

}  // namespace
}  // namespace tessera::layout
