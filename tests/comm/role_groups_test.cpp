// Tests which roles share a communicator, and when the communicator is made.
#include "tessera/comm/role_groups.h"

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/comm/local/world.h"

namespace tessera::comm {
namespace {

using mesh::Transfer;

// The places of a grid of 2 x 3 ranks. The last place is dead, so groups along one axis differ in size.
mesh::Mesh uneven_mesh() {
  const mesh::Grid grid{{"a", 3}, {"b", 2}, {"one", 1}};
  return {{grid}, mesh::live_places(grid, {5})};
}

TEST(RoleGroups, RolesWithEqualMembersAndTransferShareACommunicator) {
  run_local(5, {}, [](World& world) {
    RoleGroups roles(world, uneven_mesh());
    EXPECT_TRUE(roles.all().empty());
    Communicator& gather = roles.make({Transfer::gather, {"a"}});
    EXPECT_EQ(gather.size(), world.rank() < 3 ? 3 : 2);
    EXPECT_EQ(&roles.make({Transfer::gather, {"a"}}), &gather);
    EXPECT_EQ(&roles.make({Transfer::gather, {"one", "a"}}), &gather);  // the same ranks
    EXPECT_EQ(&roles.make(Transfer::gather, "lists", {{0, 1, 2}, {3, 4}}), &gather);
    EXPECT_EQ(roles.all().size(), 1u);
    Communicator& reduce = roles.make({Transfer::reduce, {"a"}});
    EXPECT_NE(&reduce, &gather);
    EXPECT_NE(&reduce.lane(), &gather.lane());
    EXPECT_NE(&roles.make({Transfer::gather, {"b"}}), &gather);
    EXPECT_NE(&roles.make(Transfer::gather, "other members", {{0, 1}, {2, 3, 4}}), &gather);
    EXPECT_EQ(roles.all().size(), 4u);
    EXPECT_EQ(roles.all()[1], &reduce);
  });
}

TEST(RoleGroups, RefuseEmptyAndUnknownAxesAndListsWithoutARank) {
  run_local(5, {}, [](World& world) {
    RoleGroups roles(world, uneven_mesh());
    EXPECT_THROW(roles.make({Transfer::gather, {}}), Error);
    EXPECT_THROW(roles.make({Transfer::gather, {"c"}}), Error);
    EXPECT_TRUE(roles.all().empty());
    if (world.rank() == 4) {
      EXPECT_THROW(roles.make(Transfer::gather, "some", {{0, 1}, {2, 3}}), Error);
    } else {
      roles.make(Transfer::gather, "some", {{0, 1}, {2, 3}});
    }
  });
}

}  // namespace
}  // namespace tessera::comm
