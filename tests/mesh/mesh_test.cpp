#include "tessera/mesh/mesh.h"

#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::mesh {
namespace {

using Groups = std::vector<std::vector<int>>;

TEST(Mesh, FastestAxisFirst) {
  const Mesh mesh({{"tp", 4}, {"dp", 2}});
  EXPECT_EQ(mesh.world_size(), 8);
  EXPECT_EQ(mesh.groups({"tp"}), (Groups{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(mesh.groups({"dp"}), (Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
}

TEST(Mesh, GroupsAlongSeveralAxesDoNotDependOnTheOrderOfNames) {
  const Mesh mesh({{"tp", 2}, {"gtp", 3}, {"dp", 2}});
  EXPECT_EQ(mesh.groups({"tp", "dp"}), (Groups{{0, 1, 6, 7}, {2, 3, 8, 9}, {4, 5, 10, 11}}));
  EXPECT_EQ(mesh.groups({"dp", "tp"}), mesh.groups({"tp", "dp"}));
  EXPECT_EQ(mesh.groups({"dp", "gtp", "tp"}), (Groups{{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}}));
  EXPECT_EQ(mesh.groups({}).size(), 12u);
}

TEST(Mesh, CoordinatesAndRanksAreInverse) {
  const Mesh mesh({{"tp", 2}, {"gtp", 3}, {"cp", 1}, {"dp", 4}});
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    const auto coordinates = mesh.coordinates(rank);
    EXPECT_EQ(mesh.rank_of(coordinates), rank);
    for (std::size_t i = 0; i < coordinates.size(); ++i)
      EXPECT_EQ(mesh.coordinate(rank, mesh.axes()[i].name), coordinates[i]);
  }
  EXPECT_EQ(mesh.coordinates(9), (std::vector<int>{1, 1, 0, 1}));
}

TEST(Mesh, EachRankIsInTheOneGroupItIsGiven) {
  const Mesh mesh({{"tp", 3}, {"gtp", 2}, {"dp", 2}});
  const std::vector<std::vector<std::string>> choices{{"tp"}, {"gtp"}, {"dp"}, {"tp", "gtp"}, {"gtp", "dp"}, {}};
  for (const auto& axes : choices) {
    std::vector<int> seen(12);
    for (const auto& group : mesh.groups(axes))
      for (const int rank : group) {
        ++seen[static_cast<std::size_t>(rank)];
        EXPECT_EQ(mesh.group_of(rank, axes), group);
      }
    EXPECT_EQ(seen, std::vector<int>(12, 1));
  }
}

TEST(Mesh, AnAxisItDoesNotHaveHasSizeOne) {
  const Mesh mesh({{"tp", 2}});
  EXPECT_EQ(mesh.size("pp"), 1);
  EXPECT_EQ(mesh.coordinate(1, "pp"), 0);
  EXPECT_EQ(mesh.groups({"pp"}), (Groups{{0}, {1}}));
}

TEST(Mesh, RefusesWhatIsNoMesh) {
  EXPECT_THROW(Mesh({{"tp", 0}}), InputError);
  EXPECT_THROW(Mesh({{"tp", 2}, {"tp", 2}}), InputError);
  EXPECT_THROW(Mesh({{"tp", 1 << 20}, {"dp", 1 << 20}}), InputError);
  const Mesh mesh({{"tp", 2}});
  EXPECT_THROW(mesh.coordinates(2), Error);
  EXPECT_THROW(mesh.rank_of(std::vector<int>{2}), Error);
  EXPECT_THROW(mesh.rank_of(std::vector<int>{0, 0}), Error);
}

}  // namespace
}  // namespace tessera::mesh
