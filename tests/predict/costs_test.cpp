// Tests the number of ranks of the program's collectives, by the name of their group.
#include "tessera/predict/costs.h"

#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::predict {
namespace {

TEST(RanksOfGroup, AreTheComputeRanksOfTheNamedDomain) {
  const mesh::Grid dense{{"a", 2}, {"b", 6}, {"c", 1}}, experts{{"x", 3}, {"y", 4}, {"z", 1}};
  const shard::RankLayout layout{
      .mesh = mesh::Mesh({dense, experts}, mesh::live_places(dense, {})),
      .domains = {{.compute = {"a"}, .storage = {"b"}, .duplicates = {}, .replicas = {"c"}},
                  {.compute = {"x"}, .storage = {"y"}, .duplicates = {}, .replicas = {"z"}}}};
  EXPECT_EQ(ranks_of_group(layout, "a"), 2);
  EXPECT_EQ(ranks_of_group(layout, "x"), 3);
  EXPECT_EQ(ranks_of_group(layout, schedule::kCastGroup), 12);
  EXPECT_THROW(ranks_of_group(layout, "y"), Error);
}

}  // namespace
}  // namespace tessera::predict
