// Tests the order in which losses are added, with sizes that differ by more than the precision of fp64.
#include "tessera/train/loss_sum.h"

#include <ATen/ops/scalar_tensor.h>
#include <gtest/gtest.h>

#include "tessera/comm/local/world.h"

namespace tessera::train {
namespace {

// Each order of these values gives a different sum.
double loss_of(int replica, int block) {
  const double sizes[] = {1, 1e17, -1e17, 3, 1e16, -1e16};
  return sizes[block % 6] * (replica + 1) + block;
}

// places: the places of the ranks in a grid with two replicas of three places.
void expect_block_order(const std::vector<int>& places) {
  constexpr int kBlocks = 6;
  double expected = 0;
  for (int replica = 0; replica < 2; ++replica)
    for (int block = 0; block < kBlocks; ++block) expected += loss_of(replica, block);
  const mesh::Grid grid{{"a", 1}, {"b", 3}, {"c", 2}};
  const shard::Domain domain{.compute = {"a"}, .storage = {"b"}, .duplicates = {}, .replicas = {"c"}};
  comm::run_local(static_cast<int>(places.size()), {}, [&](comm::World& world) {
    LossSum sum;
    shard::ParallelGroups parallel =
        shard::make_parallel_groups(world, {.mesh = mesh::Mesh({grid}, places), .domains = {domain}});
    const shard::Place& place = parallel.place();
    std::vector<at::Tensor> losses;
    for (int block = place.part; block < kBlocks; block += parallel.cuts().parts)
      losses.push_back(at::scalar_tensor(loss_of(place.replica, block), at::kDouble));
    sum.start(losses, parallel).synchronize();
    EXPECT_EQ(sum.result(), expected) << "rank " << world.rank();
  });
}

TEST(LossSum, AddsBlocksInOrderReplicaByReplica) {
  expect_block_order({0, 1, 2, 3, 4, 5});
  expect_block_order({0, 1, 2, 3, 5});  // the replicas have three ranks and two ranks
  expect_block_order({2, 3, 4, 5});     // the replicas have one rank and three ranks
  expect_block_order({5, 0, 3, 1, 2});
}

}  // namespace
}  // namespace tessera::train
