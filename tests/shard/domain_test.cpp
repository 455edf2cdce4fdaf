// Tests how the places of a mesh determine sharding, classes and roles of a domain.
#include "tessera/shard/domain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tessera/base/error.h"

namespace tessera::shard {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

using mesh::Grid, mesh::Mesh;

Mesh without(const Grid& grid, std::vector<int> dead) {
  return {{grid}, mesh::live_places(grid, std::move(dead))};
}

const Grid kPlain{{"a", 2}, {"b", 3}, {"c", 2}};
const Domain kDense{.compute = {"a"}, .storage = {"b"}, .duplicates = {}, .replicas = {"c"}};
const Grid kDuplicated{{"a", 1}, {"b", 2}, {"w", 2}, {"c", 2}};
const Domain kDuplicates{.compute = {"a"}, .storage = {"b"}, .duplicates = {"w"}, .replicas = {"c"}};

TEST(Domain, CutsDependOnTheReplicaOfARank) {
  const Mesh mesh = without(kPlain, {8, 9});  // one part of the second replica
  for (const int rank : {0, 5, 6, 9}) {
    const Cuts cuts = cuts_of(mesh, kDense, rank);
    EXPECT_EQ(cuts.parts, rank < 6 ? 3 : 2);
    EXPECT_EQ(cuts.shapes, (std::vector<ReplicaShape>{ReplicaShape(3, {0, 1}), ReplicaShape(2, {0, 1})}));
    EXPECT_FALSE(cuts.any_reduced());
    EXPECT_EQ(cuts.max_parts(), 3);
  }
  const Place last = place_of(mesh, kDense, 9);
  EXPECT_EQ(std::vector<int>({last.compute, last.part, last.replica, last.duplicate}), (std::vector<int>{1, 1, 1, 0}));
  EXPECT_EQ(classes_of(mesh, {kDense}), (std::vector<int>{0, 0, 0, 0, 0, 0, 1, 1, 1, 1}));
  EXPECT_EQ(classes_of(without(kPlain, {}), {kDense}), std::vector<int>(12, 0));
}

// Every rank must refuse the mesh: otherwise the other ranks would wait for the rank that did.
TEST(Domain, EveryRankRefusesAnUnusableMesh) {
  const auto is_refused = [](const Mesh& mesh, const Domain& domain, const char* refusal) {
    for (int rank = 0; rank < mesh.world_size(); ++rank)
      EXPECT_THAT([&] { cuts_of(mesh, domain, rank); }, ThrowsMessage<Error>(HasSubstr(refusal))) << rank;
  };
  is_refused(without({{"a", 2}, {"b", 2}, {"w", 2}, {"c", 1}}, {7}), kDuplicates,
             "in a domain with duplicates, dead places among them are not supported");
  is_refused(without(kDuplicated, {6, 7}), kDuplicates,
             "2 ranks add gradients of a part, expected 2 parts in 2 duplicates");
  is_refused(without(kDuplicated, {5}), kDuplicates,
             "in one replica 1 ranks store a part of a weight and 2 ranks another part");
  is_refused(without(kPlain, {}), kDuplicates, "a domain names the axes ");
}

TEST(Domain, NamesOfAxesMustDifferFromNamesOfRoles) {
  EXPECT_TRUE(checked_groups(without(kPlain, {}), {kDense}).contains("a"));
  const Grid grid{{"gather", 2}, {"b", 1}, {"c", 1}};
  EXPECT_THAT(
      [&] {
        checked_groups(without(grid, {}), {{{"gather"}, {"b"}, {}, {"c"}}});
      },
      ThrowsMessage<Error>(HasSubstr("the compute axes of a domain are named 'gather', which is the name of a role")));
}

TEST(Domain, TheProgramsCollectivesCountLiveRanksAndPlaces) {
  const Mesh mesh = without({{"a", 3}, {"b", 2}, {"c", 1}}, {1});
  const Domain over_a{{"a"}, {"b"}, {}, {"c"}};
  const ComputeGroup cut = compute_group_of(mesh, over_a, over_a, 1), whole = compute_group_of(mesh, over_a, over_a, 2);
  EXPECT_EQ(std::tuple(cut.rank, cut.size, cut.nominal_size), std::tuple(1, 2, 3));
  EXPECT_EQ(std::tuple(whole.rank, whole.size, whole.nominal_size), std::tuple(0, 3, 3));
}

TEST(Domain, AComputeGroupKnowsTheFirstDomainsRanksOfItsMembers) {
  const Grid grid{{"tp", 2}, {"gtp", 4}, {"dp", 1}};
  const Grid of_experts{{"etp", 2}, {"ep", 2}, {"egtp", 2}, {"edp", 1}, {"dp", 1}};
  const Mesh mesh({grid, of_experts}, mesh::live_places(grid, {}));
  const Domain dense{{"tp"}, {"gtp"}, {}, {"dp"}}, experts{{"etp", "ep"}, {"egtp"}, {"edp"}, {"dp"}};
  const ComputeGroup group = compute_group_of(mesh, experts, dense, 6);
  EXPECT_EQ(group.first_ranks, (std::vector<int>{0, 1, 0, 1}));
  EXPECT_EQ(std::pair(group.axes[0].index, group.axes[0].size), std::pair(0, 2));
  EXPECT_EQ(std::pair(group.axes[1].index, group.axes[1].size), std::pair(1, 2));
  EXPECT_EQ(compute_group_of(mesh, dense, dense, 6).first_ranks, (std::vector<int>{0, 1}));
}

TEST(Domain, DomainsWithTheSameComputeAxesShareTheProgramsGroup) {
  const Domain other{.compute = {"a"}, .storage = {"b", "w"}, .duplicates = {}, .replicas = {"c"}};
  const Mesh mesh = without(kDuplicated, {});
  EXPECT_EQ(checked_groups(mesh, {kDuplicates, other}).at("a").groups, mesh.groups({"a"}));
}

TEST(Domain, NamesOfRolesAreThoseOfTheirGroups) {
  const Domain other{.compute = {"a", "b"}, .storage = {"w"}, .duplicates = {}, .replicas = {"c"}};
  std::set<std::string> names;
  for (const auto& [name, group] : checked_groups(without(kDuplicated, {}), {kDuplicates, other})) names.insert(name);
  EXPECT_EQ(role_names({kDuplicates, other}), names);
}

// A lane is the lane of a communicator, so hops with the same lane_of and equal groups have equal numbers.
TEST(Domain, HopsShareLanesWhereTheirGroupsAreEqual) {
  const auto number_of = [](const Mesh& mesh, const std::vector<Domain>& domains) {
    const std::vector<schedule::Lanes> lanes = lanes_of_hops(mesh, domains);
    for (const schedule::Lanes& own : lanes) EXPECT_EQ(own[mesh::Transfer::publish], own[mesh::Transfer::replicas]);
    return schedule::number_of_lanes(lanes);
  };
  EXPECT_EQ(number_of(without(kPlain, {}), {kDense}), 5U);
  EXPECT_EQ(number_of(without(kPlain, {}), {kDense, kDense}), 5U);
  EXPECT_EQ(number_of(without(kPlain, {8, 9}), {kDense}), 5U);
  EXPECT_EQ(number_of(without({{"a", 1}, {"b", 1}, {"c", 1}}, {}), {kDense}), 3U);
}

TEST(Domain, ReplicasHaveOneGroupForEachPartUnlessPlacesAreDead) {
  EXPECT_EQ(role_of(without(kPlain, {}), kDense, mesh::Transfer::replicas).axes, (mesh::Axes{"c"}));
  EXPECT_EQ(role_of(without(kPlain, {8, 9}), kDense, mesh::Transfer::replicas).axes, (mesh::Axes{"b", "c"}));
  EXPECT_EQ(role_of(without(kDuplicated, {}), kDuplicates, mesh::Transfer::reduce).axes, (mesh::Axes{"b", "w"}));
}

}  // namespace
}  // namespace tessera::shard
