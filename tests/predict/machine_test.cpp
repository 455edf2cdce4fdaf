#include "tessera/predict/machine.h"

#include <gtest/gtest.h>

namespace tessera::predict {
namespace {

TEST(Machine, HasMoreOverheadWithMoreRanksOfANode) {
  const Machine machine{.ranks_per_node = 8,
                        .overhead = {.context_bytes = 100, .communicator_bytes = 20, .peer_bytes = 3}};
  EXPECT_EQ(machine.overhead_bytes(1), 100);
  EXPECT_EQ(machine.overhead_bytes(2), 100 + 20 + 3);
  EXPECT_EQ(machine.overhead_bytes(8), 100 + 20 + 7 * 3);
  EXPECT_EQ(machine.overhead_bytes(32), 100 + 20 + 7 * 3) << "ranks of other nodes need no memory";
}

}  // namespace
}  // namespace tessera::predict
