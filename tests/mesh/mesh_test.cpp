#include "tessera/mesh/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <random>

#include "tessera/base/error.h"
#include "tessera/mesh/transfer.h"

namespace tessera::mesh {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

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

TEST(Mesh, CoordinatesOfARank) {
  const Mesh mesh({{"tp", 2}, {"gtp", 3}, {"cp", 1}, {"dp", 4}});
  const std::vector<std::string> names{"tp", "gtp", "cp", "dp"};
  std::vector<int> found;
  for (const std::string& axis : names) found.push_back(mesh.coordinate(9, axis));
  EXPECT_EQ(found, (std::vector<int>{1, 1, 0, 1}));
  EXPECT_EQ(mesh.coordinate(9, Axes{"dp", "gtp"}), 1 + 3 * 1);  // gtp varies faster
  EXPECT_EQ(mesh.size(Axes{"dp", "gtp"}), 12);
  EXPECT_EQ(mesh.coordinate(9, Axes{}), 0);
  EXPECT_EQ(mesh.all_axes(), names);
}

TEST(Mesh, EachRankIsInExactlyOneGroup) {
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

TEST(Mesh, RefusesInvalidGrids) {
  EXPECT_THAT(
      [&] {
        Mesh(Grid{{"tp", 0}});
      },
      ThrowsMessage<InputError>(HasSubstr("mesh axis 'tp': expected a size of at least 1, got 0")));
  EXPECT_THAT(
      [&] {
        Mesh(Grid{{"tp", 2}, {"tp", 2}});
      },
      ThrowsMessage<InputError>(HasSubstr("axis 'tp' is given twice")));
  EXPECT_THAT(
      [&] {
        Mesh(Grid{{"tp", 1 << 20}, {"dp", 1 << 20}});
      },
      ThrowsMessage<InputError>(HasSubstr("more than 2147483647 ranks with axis 'dp'")));
  const Grid two{{"tp", 2}};
  EXPECT_THAT([&] { Mesh({}, {0}); }, ThrowsMessage<InputError>(HasSubstr("mesh: no axes")));
  EXPECT_THAT([&] { Mesh({two}, {}); }, ThrowsMessage<InputError>(HasSubstr("mesh: no rank")));
  EXPECT_THAT(
      [&] {
        Mesh({two}, {0, 2});
      },
      ThrowsMessage<InputError>(HasSubstr("rank 1 is at place 2, expected one in [0, 2)")));
  EXPECT_THAT([&] { Mesh({two}, {-1}); },
              ThrowsMessage<InputError>(HasSubstr("rank 0 is at place -1, expected one in [0, 2)")));
  EXPECT_THAT([&] { Mesh({two}, {1, 1}); }, ThrowsMessage<InputError>(HasSubstr("ranks 0 and 1 are both at place 1")));
  EXPECT_THAT(
      [&] {
        Mesh({two, Grid{{"ep", 3}}}, {0, 1});
      },
      ThrowsMessage<InputError>(HasSubstr("one grid has 2 places, another grid has 3")));
  EXPECT_THAT(
      [&] {
        Mesh({{{"tp", 2}, {"dp", 2}}, {{"dp", 2}, {"ep", 2}}}, {0, 1, 2, 3});
      },
      ThrowsMessage<InputError>(HasSubstr("axis 'dp' differs between two grids")));  // dp is another
  const Mesh mesh(two);
  EXPECT_THAT([&] { mesh.coordinate(2, "tp"); }, ThrowsMessage<Error>(HasSubstr("expected a rank in [0, 2), got 2")));
  EXPECT_THAT([&] { mesh.group_of(-1, {"tp"}); }, ThrowsMessage<Error>(HasSubstr("expected a rank in [0, 2), got -1")));
  for (const auto& refused :
       {std::function<void()>([&] { mesh.size("pp"); }), {[&] { mesh.coordinate(1, "pp"); }}, {[&] {
          mesh.groups({"tp", "pp"});
        }}}) {
    try {
      refused();
      FAIL() << "an axis that the mesh does not have";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("'tp'"), std::string::npos) << error.what();
    }
  }
}

// A mesh with a replica of three ranks and a replica of two ranks.
TEST(Mesh, DeadPlacesAreInNoGroup) {
  const Grid grid{{"tp", 1}, {"gtp", 3}, {"dp", 2}};
  const Mesh mesh({grid}, live_places(grid, {4}));
  EXPECT_EQ(mesh.world_size(), 5);
  EXPECT_TRUE(mesh.has_dead_places());
  EXPECT_EQ(mesh.groups({"gtp"}), (Groups{{0, 1, 2}, {3, 4}}));
  EXPECT_EQ(mesh.groups({"dp"}), (Groups{{0, 3}, {1}, {2, 4}}));
  EXPECT_EQ(mesh.groups({"gtp", "dp"}), (Groups{{0, 1, 2, 3, 4}}));
  EXPECT_EQ(mesh.coordinate(4, "gtp"), 2);  // the rank keeps its place
  EXPECT_THAT([&] { live_places(grid, {6}); },
              ThrowsMessage<InputError>(HasSubstr("got a dead place 6, expected a place in [0, 6)")));
  EXPECT_THAT([&] { live_places(grid, {1, 1}); }, ThrowsMessage<InputError>(HasSubstr("dead place 1 is given twice")));
}

TEST(Mesh, PlacesMayBeGivenForEachRank) {
  const Mesh mesh({Grid{{"tp", 2}, {"dp", 2}}}, {3, 0, 1, 2});
  EXPECT_EQ(mesh.groups({"tp"}), (Groups{{1, 2}, {3, 0}}));  // in the order of places
  EXPECT_EQ(mesh.group_of(0, {"dp"}), (std::vector<int>{2, 0}));
}

TEST(Mesh, SeveralGridsOfTheSameRanks) {
  const Grid dense{{"tp", 2}, {"gtp", 2}, {"dp", 2}}, experts{{"ep", 2}, {"edp", 2}, {"dp", 2}};
  const Mesh mesh({dense, experts}, live_places(dense, {}));
  EXPECT_EQ(mesh.groups({"edp"}), mesh.groups({"gtp"}));
  EXPECT_EQ(mesh.groups({"ep", "dp"}), (Groups{{0, 1, 4, 5}, {2, 3, 6, 7}}));
  EXPECT_EQ(mesh.size("dp"), 2);
  EXPECT_THAT(
      [&] {
        mesh.groups({"tp", "ep"});
      },
      ThrowsMessage<Error>(HasSubstr("no grid has all of the axes tp, ep")));  // the axes are from two grids
  // Along an axis of size 1 every rank has coordinate 0, independent of the axis's position in the grid.
  const Mesh single({{{"tp", 2}, {"cp", 1}, {"gtp", 2}}, {{"ep", 4}, {"cp", 1}}}, {0, 1, 2, 3});
  EXPECT_EQ(single.groups({"tp", "cp"}), (Groups{{0, 1}, {2, 3}}));
  EXPECT_EQ(single.coordinate(3, "cp"), 0);
}

// Returns every list of axes of every grid, without the empty list.
std::vector<Axes> lists_of_axes(const Mesh& mesh) {
  std::vector<Axes> lists;
  for (const Grid& grid : mesh.grids())
    for (unsigned chosen = 1; chosen < 1U << grid.size(); ++chosen) {
      Axes& axes = lists.emplace_back();
      for (std::size_t axis = 0; axis < grid.size(); ++axis)
        if ((chosen & 1U << axis) != 0) axes.push_back(grid[axis].name);
    }
  return lists;
}

// Returns a grid of four axes with random sizes, whose places are `count`.
Grid random_grid(const std::string& names, int count, std::mt19937& random) {
  Grid grid;
  for (const char name : names) {
    int size = 1;
    for (const int factor : {2, 2, 3})
      if (count % (size * factor) == 0 && random() % 2 == 0) size *= factor;
    if (name == names.back()) size = count;
    grid.push_back({std::string(1, name), size});
    count /= size;
  }
  return grid;
}

TEST(Mesh, EqualStridesAreEqualGroups) {
  std::mt19937 random(3);
  int equal = 0;
  for (int trial = 0; trial < 40; ++trial) {
    std::vector<int> places(std::array{1, 12, 24, 36}.at(random() % 4));
    std::iota(places.begin(), places.end(), 0);
    std::ranges::shuffle(places, random);
    const int count = static_cast<int>(places.size());
    const Mesh mesh({random_grid("abcd", count, random), random_grid("efgh", count, random)}, places);
    const std::vector<Axes> lists = lists_of_axes(mesh);
    std::vector<std::vector<std::vector<int>>> groups;
    for (const Axes& axes : lists) groups.push_back(mesh.groups(axes));
    for (std::size_t a = 0; a < lists.size(); ++a)
      for (std::size_t b = 0; b < a; ++b) {
        EXPECT_EQ(mesh.strides(lists[a]) == mesh.strides(lists[b]), groups[a] == groups[b])
            << to_string(mesh.grids()[0]) << ", " << to_string(mesh.grids()[1]) << ", lists " << a << " and " << b;
        equal += groups[a] == groups[b] ? 1 : 0;
      }
  }
  EXPECT_GT(equal, 1000);
}

TEST(Mesh, StridesJoinAdjacentAxesAndLeaveOutAxesOfSizeOne) {
  const Mesh mesh({{"tp", 2}, {"one", 1}, {"gtp", 6}, {"dp", 2}});
  using Strides = std::vector<std::pair<int, int>>;
  EXPECT_EQ(mesh.strides({"gtp", "tp"}), (Strides{{12, 1}}));
  EXPECT_EQ(mesh.strides({"dp", "tp", "one"}), (Strides{{2, 1}, {2, 12}}));
  EXPECT_EQ(mesh.strides({"one"}), Strides());
}

TEST(Transfer, HopsAndPublishesShareTheLanesOfTheirTransfers) {
  static_assert(lane_of(Transfer::gather_compute) == Transfer::gather);
  static_assert(lane_of(Transfer::reduce_compute) == Transfer::reduce);
  static_assert(lane_of(Transfer::publish) == Transfer::replicas);
  using enum Transfer;
  for (const Transfer transfer :
       {program, gather, demand, rows, reduce, replicas, losses, norm, agreement, casts, matrices, replica_matrices})
    EXPECT_EQ(lane_of(transfer), transfer) << name_of(transfer);
}

TEST(Transfer, HasANameAndATitle) {
  std::vector<std::string_view> names, titles;
  for (std::size_t transfer = 0; transfer < kTransfers; ++transfer) {
    names.push_back(name_of(static_cast<Transfer>(transfer)));
    titles.push_back(title_of(static_cast<Transfer>(transfer)));
  }
  EXPECT_THAT(names, ::testing::ElementsAre("program", "gather", "gather_compute", "demand", "rows", "reduce_compute",
                                            "reduce", "replicas", "publish", "losses", "norm", "agreement", "casts",
                                            "matrices", "replica_matrices"));
  EXPECT_EQ(titles[2], "gather over compute");
  EXPECT_EQ(titles[5], "reduce over compute");
  titles[2] = names[2], titles[5] = names[5];
  EXPECT_EQ(titles, names);
  EXPECT_EQ(name_of(Transfer::reduce_compute), "reduce_compute");
  EXPECT_EQ(name_of(Transfer::casts), "casts");
  ByTransfer<int> numbers;
  numbers[Transfer::publish] = 3;
  EXPECT_EQ(numbers.values[8], 3);
}

TEST(Role, HasTheGroupsAlongItsAxes) {
  const Mesh mesh({{"tp", 2}, {"dp", 2}});
  EXPECT_EQ(groups_of(mesh, {Transfer::reduce, {"dp"}}), mesh.groups({"dp"}));
  EXPECT_EQ(groups_of(mesh, {Transfer::reduce, {"dp", "tp"}}), (Groups{{0, 1, 2, 3}}));
  EXPECT_EQ(to_string({Transfer::reduce, {"dp", "tp"}}), "reduce over dp, tp");
  EXPECT_THAT(
      [&] {
        groups_of(mesh, {Transfer::reduce, {}});
      },
      ThrowsMessage<Error>(HasSubstr("the role 'reduce' has no axes")));
  EXPECT_THAT(
      [&] {
        groups_of(mesh, {Transfer::reduce, {"gtp"}});
      },
      ThrowsMessage<Error>(HasSubstr("no grid has all of the axes gtp, the axes are 'tp', 'dp'")));
}

}  // namespace
}  // namespace tessera::mesh
