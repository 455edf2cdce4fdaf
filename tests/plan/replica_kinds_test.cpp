// Kinds of replicas of meshes with unused places, and random places.
#include "tessera/plan/replica_kinds.h"

#include <gmock/gmock.h>

#include <set>

namespace tessera::plan {
namespace {

using ::testing::ElementsAre;

ReplicaKinds kinds_of(const nn::MeshDegrees& degrees, const std::string& unused) {
  return replica_kinds(settings::parse_slots(unused, "--dead"), degrees);
}

TEST(ReplicaKinds, AreTheNumbersOfRanksInTheTpGroups) {
  const nn::MeshDegrees degrees{.tp = 4, .gtp = 2, .dp = 6};
  const ReplicaKinds kinds = kinds_of(degrees, "dp1.gtp0:2;dp2.gtp1:0;dp3.gtp0:1,2;dp4.gtp1:0,1,2,3");
  ASSERT_EQ(kinds.kinds.size(), 4u);
  EXPECT_THAT(kinds.kinds[0].replicas, ElementsAre(0, 5));
  EXPECT_THAT(kinds.kinds[1].replicas, ElementsAre(1, 2));
  EXPECT_THAT(kinds.kinds[1].live, ElementsAre(4, 3));
  EXPECT_THAT(kinds.kinds[2].live, ElementsAre(4, 2));
  EXPECT_THAT(kinds.kinds[3].live, ElementsAre(4));
  EXPECT_TRUE(kinds.kinds[2].is_reduced);
  EXPECT_FALSE(kinds.kinds[3].is_reduced);
  EXPECT_EQ(kinds.ranks(), 48 - 8);
  EXPECT_EQ(kinds.replicas, 6);
  EXPECT_EQ(kind_text(kinds.kinds[0], degrees), "full");
  EXPECT_EQ(kind_text(kinds.kinds[1], degrees), "1 x 4 + 1 x 3 of 2 x 4 ranks");
  EXPECT_EQ(kind_text(kinds.kinds[3], degrees), "1 x 4 of 2 x 4 ranks");
}

TEST(ReplicaKinds, WithoutUnusedPlacesAreOne) {
  const ReplicaKinds kinds = kinds_of({.tp = 4, .gtp = 2, .dp = 3}, "");
  ASSERT_EQ(kinds.kinds.size(), 1u);
  EXPECT_EQ(kinds.updating, 3);
  EXPECT_TRUE(kinds.all_reduces);
  EXPECT_TRUE(kinds.kinds[0].updates);
}

// With ZeRO-1 the largest class of equal shapes updates the state, among equals that of the lowest replica.
TEST(ReplicaKinds, PlanTheReplicaThatUpdatesTheState) {
  ReplicaKinds kinds = kinds_of({.tp = 4, .gtp = 1, .dp = 4}, "dp0:1;dp1:3;dp2:1");
  EXPECT_EQ(kinds.updating, 2);
  ASSERT_EQ(kinds.kinds.size(), 2u);
  EXPECT_FALSE(kinds.kinds[0].updates);
  EXPECT_TRUE(kinds.kinds[1].updates);
  EXPECT_EQ(to_text(kinds.kinds[1].unused), "dp0.gtp0:1");
  kinds = kinds_of({.tp = 4, .gtp = 1, .dp = 4}, "dp0:1;dp1:3");
  EXPECT_TRUE(kinds.kinds[0].updates);
  EXPECT_FALSE(kinds.kinds[1].updates);
  EXPECT_EQ(to_text(kinds.kinds[1].unused), "dp0.gtp0:3") << "the highest slots are planned";
  EXPECT_FALSE(kinds.all_reduces);
}

TEST(ReplicaKinds, DeadReplicasAreLeftOut) {
  const ReplicaKinds kinds = kinds_of({.tp = 2, .gtp = 1, .dp = 3}, "dp1:0,1");
  EXPECT_EQ(kinds.replicas, 2);
  EXPECT_THAT(kinds.kinds.front().replicas, ElementsAre(0, 2));
  EXPECT_TRUE(kinds.all_reduces) << "one whole tp group in each replica";
}

TEST(InOrderOfRanks, ReplicasOfOneKindAreEqual) {
  const nn::MeshDegrees degrees{.tp = 4, .gtp = 3, .dp = 6};
  const settings::PlaceMap unused =
      settings::parse_slots("dp1.gtp0:2;dp2.gtp1:0;dp3.gtp0:1,2;dp3.gtp2:0;dp4.gtp1:0,1,2,3", "--dead");
  const settings::PlaceMap ordered = in_order_of_ranks(unused, degrees);
  EXPECT_EQ(to_text(ordered), "dp1.gtp2:3;dp2.gtp2:3;dp3.gtp1:3;dp3.gtp2:2,3;dp4.gtp2:0,1,2,3");
  EXPECT_EQ(in_order_of_ranks({}, degrees), settings::PlaceMap());
  const ReplicaKinds before = replica_kinds(unused, degrees), after = replica_kinds(ordered, degrees);
  ASSERT_EQ(before.kinds.size(), after.kinds.size());
  for (std::size_t i = 0; i < before.kinds.size(); ++i) {
    EXPECT_EQ(before.kinds[i].replicas, after.kinds[i].replicas);
    EXPECT_EQ(before.kinds[i].live, after.kinds[i].live);
  }
}

TEST(DeadAtRandom, DependsOnTheSeedAlone) {
  const nn::MeshDegrees degrees{.tp = 32, .gtp = 8, .dp = 128};
  const settings::PlaceMap first = dead_at_random(0.001, 1, degrees);
  EXPECT_EQ(count(first), 33);  // 32.768 of 32768 places
  EXPECT_EQ(first, dead_at_random(0.001, 1, degrees));
  EXPECT_NE(first, dead_at_random(0.001, 2, degrees));
  EXPECT_EQ(first, settings::parse_slots(to_text(first), "--dead"));
  EXPECT_EQ(dead_at_random(0, 1, degrees), settings::PlaceMap());
  EXPECT_EQ(count(dead_at_random(0.5, 3, {.tp = 2, .gtp = 1, .dp = 4})), 4);
}

}  // namespace
}  // namespace tessera::plan
