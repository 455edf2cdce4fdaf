// Tests the order of gradient sums: the rank that sums a node's parts for each owner, the bytes of the messages, and
// the bits of the sums.
#include "tessera/shard/ways/reduction_tree.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>
#include <set>

#include "tessera/base/error.h"
#include "tessera/comm/local/world.h"
#include "tessera/quant/bfloat16.h"
#include "tessera/runtime/runtime.h"
#include "tessera/shard/parallel_groups.h"

namespace tessera::shard {
namespace {

using quant::DType;

TEST(ReductionTree, EveryNodeSumsForEveryOwnerOnce) {
  for (int ranks = 1; ranks <= 9; ++ranks)
    for (int node = 1; node <= ranks + 1; ++node) {
      std::map<std::pair<int, int>, int> makers;  // key: owner and node; number of ranks that sum for them
      for (int rank = 0; rank < ranks; ++rank) {
        const ReductionTree tree(std::vector<std::int64_t>(static_cast<std::size_t>(ranks), 2), node, rank);
        for (const int owner : tree.relayed()) ++makers[{owner, tree.node_of(rank)}];
        EXPECT_EQ(tree.node_of(tree.relay(rank, tree.node_of(rank))), tree.node_of(rank));
        EXPECT_EQ(tree.relay(rank, tree.node_of(rank)), rank);  // in the node of the owner, the owner itself sums
      }
      EXPECT_EQ(makers.size(), static_cast<std::size_t>(ranks * ((ranks + node - 1) / node)));
      for (const auto& [key, count] : makers) EXPECT_EQ(count, 1);
    }
}

// Each number is computed from the relays of one rank, as the messages are.
TEST(ReductionTree, TheBytesOfAllRanksAreThoseOfTheirRelays) {
  for (int ranks = 1; ranks <= 9; ++ranks)
    for (int node = 1; node <= ranks + 1; ++node) {
      std::vector<std::int64_t> owned;
      for (int rank = 0; rank < ranks; ++rank) owned.push_back(1 + rank * rank % 7);
      const ReductionBytes all(owned, node);
      for (int rank = 0; rank < ranks; ++rank) {
        const ReductionTree tree(owned, node, rank);
        const int own = tree.node_of(rank);
        std::int64_t elements = 0, between = 0;
        for (const int owner : tree.relayed()) elements += owned[static_cast<std::size_t>(owner)];
        for (int other = 0; other < tree.nodes(); ++other)
          if (other != own)
            between += bytes_of(owned[static_cast<std::size_t>(rank)], tree.type_of(other, DType::bf16, DType::fp32));
        const bool is_alone = tree.members_of(own) == 1;
        const ReductionBytes::Bytes bytes = all.of(rank, 0, DType::bf16, DType::fp32);
        EXPECT_EQ(bytes.within, is_alone ? 0 : 2 * (tree.members_of(own) - 1) * elements);
        EXPECT_EQ(bytes.sums, is_alone ? 0 : 4 * elements);
        EXPECT_EQ(bytes.between, between);
      }
    }
}

TEST(ReductionTree, BytesAreThoseOfTheMessages) {
  // There are two nodes with three and two ranks. In the second node, rank 4 sums for the owners 1 and 4, and rank 3
  // sums for the owners 0, 2 and 3.
  const std::vector<std::int64_t> owned{5, 4, 3, 2, 1};
  const ReductionTree rank3(owned, 3, 3), rank4(owned, 3, 4);
  EXPECT_EQ(rank3.relayed(), (std::vector<int>{0, 2, 3}));
  EXPECT_EQ(rank4.relayed(), (std::vector<int>{1, 4}));
  const ReductionBytes::Bytes bytes = ReductionBytes(owned, 3).of(3, 0, DType::bf16, DType::fp32);
  EXPECT_EQ(bytes.within, 10 * 2);
  EXPECT_EQ(bytes.sums, 10 * 4);
  EXPECT_EQ(bytes.between, 2 * 4);
  const ReductionBytes::Bytes sequential = ReductionBytes(owned, 1).of(3, 0, DType::bf16, DType::fp32);
  EXPECT_EQ(sequential.within + sequential.sums, 0);
  EXPECT_EQ(sequential.between, 4 * 2 * 2);
  EXPECT_THROW(ReductionTree(owned, 0, 0), Error);
}

// Returns values with many magnitudes, all bits and both signs, so that sums depend on the order.
float value(int rank, std::int64_t i) {
  std::uint64_t bits = (static_cast<std::uint64_t>(i) * 64 + static_cast<std::uint64_t>(rank) + 1) * 0x9E3779B97F4A7C15;
  bits = (bits ^ (bits >> 29)) * 0xBF58476D1CE4E5B9;
  const auto mantissa = static_cast<float>(bits >> 41) / static_cast<float>(1 << 23);
  const int exponent = static_cast<int>(bits % 19) - 9;
  return std::ldexp(1.0F + mantissa, exponent) * ((bits >> 20) % 2 == 0 ? 1.0F : -1.0F);
}

float rounded(float x, DType wire) {
  return wire == DType::bf16 ? static_cast<float>(quant::bfloat16(x)) : x;
}

// Returns the sum as one process would compute it. A node with one rank contributes its part, and other nodes
// contribute the sum of their parts.
float expected(int ranks, int node, DType wire, std::int64_t i) {
  float sum = 0;
  for (int first = 0; first < ranks; first += node) {
    float part = 0;
    for (int rank = first; rank < std::min(first + node, ranks); ++rank) {
      const float given = rounded(value(rank, i), wire);
      part = rank == first ? given : part + given;
    }
    sum = first == 0 ? part : sum + part;
  }
  return sum;
}

// The second domain stores each part of a gradient `copies` times. Only a second domain may do so.
RankLayout with_copies(int ranks, int copies) {
  const mesh::Grid first{{"compute", 1}, {"parts", ranks}, {"runs", 1}};
  const mesh::Grid second{{"users", 1}, {"keepers", ranks / copies}, {"copies", copies}, {"replicas", 1}};
  return {
      .mesh = mesh::Mesh({first, second}, mesh::live_places(first, {})),
      .domains = {{.compute = {"compute"}, .storage = {"parts"}, .duplicates = {}, .replicas = {"runs"}},
                  {.compute = {"users"}, .storage = {"keepers"}, .duplicates = {"copies"}, .replicas = {"replicas"}}}};
}

struct Reduction {
  int ranks, copies, node;
  DType wire;
  bool sharded;
  std::int64_t rows;
};

void reduce_once(const Reduction& it, std::vector<float>& found) {
  const std::int64_t rows = it.rows, cols = 3;
  found.assign(static_cast<std::size_t>(rows * cols), NAN);
  std::mutex mutex;
  comm::run_local(it.ranks, {}, [&](comm::World& world) {
    ParallelGroups parallel = make_parallel_groups(world, with_copies(it.ranks, it.copies));
    runtime::Runtime runtime(parallel, {.wire = it.wire}, {.nodes = {1, it.node}});
    const schedule::ParameterId id = runtime.parameters().add({.name = "w",
                                                               .dims = {rows, cols},
                                                               .compute = layout::replicated({rows, cols}, 1),
                                                               .sharded = it.sharded,
                                                               .domain = 1});
    runtime.program().begin_step(schedule::StepKind::train, 1);
    runtime.program().begin_microbatch(0);
    auto* gradient = static_cast<float*>(runtime.program().grad_buffer(id, 0).data);
    for (std::int64_t i = 0; i < rows * cols; ++i) gradient[i] = value(world.rank(), i);
    runtime.program().produce(id, 0);
    runtime.program().end_microbatch(0);
    runtime.program().end_step();
    const ShardedParameter& parameter = runtime.parameter(id);
    const auto sum = parameter.main_grad.as<float>();
    const std::lock_guard lock(mutex);
    for (const layout::Piece& piece : parameter.local_storage.pieces)
      for (std::int64_t i = 0; i < piece.box.elements(); ++i)
        found[static_cast<std::size_t>(piece.box.row * cols + i)] = sum[static_cast<std::size_t>(piece.offset + i)];
  });
}

TEST(ReductionTree, SumsHaveTheBitsOfTheTree) {
  for (const DType wire : {DType::fp32, DType::bf16})
    for (const bool sharded : {true, false})
      for (const std::int64_t rows : {1, 4, 11})
        for (int ranks = 1; ranks <= 6; ++ranks) {
          std::set<std::vector<float>> orders;
          for (int node = 1; node <= ranks; ++node)
            for (int copies = 1; copies <= ranks; ++copies) {
              if (ranks % copies != 0) continue;
              std::vector<float> found;
              reduce_once({ranks, copies, node, wire, sharded, rows}, found);
              for (std::int64_t i = 0; i < rows * 3; ++i)
                ASSERT_EQ(found[static_cast<std::size_t>(i)], expected(ranks, node, wire, i))
                    << ranks << " ranks, " << copies << " copies, nodes of " << node << ", element " << i;
              orders.insert(found);
            }
          if (ranks >= 5 && rows == 11) {
            EXPECT_GT(orders.size(), 1U);  // another order gives another sum
          }
        }
}

}  // namespace
}  // namespace tessera::shard
