// Tests the ways of a gradient one by one: over compute ranks, over the ranks that store it, and over replicas. Orders
// and bits must be exact.
#include <gtest/gtest.h>

#include <optional>

#include "tessera/shard/ways/reduction.h"
#include "tessera/shard/ways/replicas.h"
#include "tests/shard/way_ranks.h"

namespace tessera::shard {
namespace {

using mesh::Transfer;
using quant::DType;

// Returns numbers whose sums depend on the order of the additions.
float gradient_at(int block, int part, int compute, std::int64_t index) {
  const std::int64_t mixed = (index * 31 + std::int64_t{block} * 7 + std::int64_t{part} * 13 + compute * 5) % 97;
  return 1.0F / static_cast<float>(1 + mixed) - 0.3F * static_cast<float>(part);
}

float rounded_to(DType type, float value) {
  return type == DType::bf16 ? static_cast<float>(quant::bfloat16(value)) : value;
}

bool is_in_parts(const ParameterSpec& spec) {
  return spec.sharded || spec.partial_gradient;
}

// Returns the gradient that one storing rank sends: the compute ranks' parts, added in rank order in fp32 and rounded
// to the wire type.
float given(const ParameterSpec& spec, DType wire, int block, int part, std::int64_t index) {
  std::optional<float> sum;
  for (int compute = 0; compute < spec.compute.size(); ++compute) {
    const auto& local = spec.compute.ranks[static_cast<std::size_t>(compute)];
    if (!has_index(local, spec.compute.shape.cols, index)) continue;
    const float one = gradient_at(block, part, is_in_parts(spec) ? compute : 0, index);
    sum = sum ? *sum + one : one;
    if (!is_in_parts(spec)) break;
  }
  return rounded_to(wire, sum.value());
}

// Adds the nodes' sums to `before`, in node order. Each node's sum is made in rank order.
float reduced(const WayMesh& mesh, const ParameterSpec& spec, DType wire, int block, std::int64_t index,
              std::optional<float> before) {
  for (int first = 0; first < mesh.parts; first += mesh.node) {
    float node = given(spec, wire, block, first, index);
    for (int part = first + 1; part < std::min(first + mesh.node, mesh.parts); ++part)
      node = node + given(spec, wire, block, part, index);
    before = before ? *before + node : node;
  }
  return before.value();
}

// Checks the received bytes. Each rank must be a node of its own.
void expect_reduced_bytes(const WayRank& rank) {
  const ShardedParameter& parameter = rank.parameter;
  const layout::Layout& compute = parameter.spec.compute;
  std::int64_t over_compute = 0;
  if (schedule::has_hop(rank.ways.reduce, Transfer::reduce_compute))
    for (const std::int64_t index : indices_of(parameter.local_home, compute.shape.cols))
      for (int other = 0; other < compute.size(); ++other)
        if (other != parameter.place.compute &&
            has_index(compute.ranks[static_cast<std::size_t>(other)], compute.shape.cols, index))
          ++over_compute;
  std::int64_t bytes = bytes_of(over_compute, DType::fp32);
  // If every compute rank has the whole gradient, an all-reduce adds it: a reduce-scatter, then an all-gather.
  if (!parameter.spec.sharded) bytes = 2 * bytes / compute.size();
  EXPECT_EQ(bytes_over(rank.ways.reduce, Transfer::reduce_compute), bytes);
  EXPECT_EQ(bytes_over(rank.ways.reduce, Transfer::reduce),
            bytes_of((rank.cuts.parts - 1) * parameter.shard_elements(), parameter.types.wire));
}

void write_staging(const WayRank& rank, const Reducer& reducer, std::byte* staging, int block) {
  const ShardedParameter& parameter = rank.parameter;
  const int compute = is_in_parts(parameter.spec) ? parameter.place.compute : 0;
  runtime::for_each_element(
      parameter.local_compute, parameter.storage.shape.cols, [&](std::int64_t at, std::int64_t index) {
        put(staging, reducer.staging_type(), at, gradient_at(block, parameter.place.part, compute, index));
      });
}

void reduce_two_blocks(WayRank& rank, const WayMesh& mesh) {
  ShardedParameter& parameter = rank.parameter;
  const Reducer reducer(parameter, rank.parallel, rank.cuts, rank.ways.reduce);
  if (mesh.node == 1) expect_reduced_bytes(rank);
  for (int block = 0; block < 2; ++block) {
    Guarded staging(reducer.staging_bytes()), scratch(reducer.scratch_bytes());
    write_staging(rank, reducer, staging.data(), block);
    Reducing member{&parameter, &reducer, staging.data(), scratch.data()};
    reduce({&member, 1}, rank.parallel, /*is_last=*/block == 1, {}, staging.span()).wait();
    EXPECT_TRUE(parameter.main_grad_written());
    EXPECT_TRUE(staging.is_all_poison());
    EXPECT_TRUE(scratch.is_guard_whole());
  }
  const DType wire = parameter.types.wire;
  const auto sums = parameter.main_grad.as<float>();
  runtime::for_each_element(
      parameter.local_storage, parameter.storage.shape.cols, [&](std::int64_t at, std::int64_t index) {
        const float first = reduced(mesh, parameter.spec, wire, 0, index, {});
        ASSERT_EQ(sums[static_cast<std::size_t>(at)], reduced(mesh, parameter.spec, wire, 1, index, first))
            << "element " << index;
      });
}

TEST(ReduceWay, AddsPartsInRankOrderAndRoundsThemOnce) {
  for (const int compute : {1, 2, 3})
    for (const auto& [parts, node] : {std::pair{1, 1}, {2, 1}, {3, 1}, {3, 2}, {4, 2}})
      for (const ParameterSpec& spec : way_specs(compute))
        for (const DType wire : {DType::fp32, DType::bf16}) {
          const WayMesh mesh{.compute = compute, .parts = parts, .node = node};
          SCOPED_TRACE(spec.name + ", compute " + std::to_string(compute) + ", parts " + std::to_string(parts) +
                       ", node " + std::to_string(node) + (wire == DType::bf16 ? ", bf16" : ""));
          on_way_ranks(mesh, spec, {.wire = wire}, [&](WayRank& rank) { reduce_two_blocks(rank, mesh); });
        }
}

TEST(ReduceWay, OtherOrdersGiveOtherBits) {
  const ParameterSpec spec = way_specs(3)[2];
  const std::int64_t shared = 7 * 4;  // an element of a row on all three compute ranks
  const WayMesh nodes{.compute = 3, .parts = 4, .node = 2}, ranks{.compute = 3, .parts = 4};
  int differ_by_nodes = 0, differ_by_rounding = 0;
  for (std::int64_t index = shared; index < shared + 8; ++index) {
    const float by_rank = reduced(ranks, spec, DType::fp32, 0, index, {});
    differ_by_nodes += by_rank != reduced(nodes, spec, DType::fp32, 0, index, {}) ? 1 : 0;
    differ_by_rounding += by_rank != reduced(ranks, spec, DType::bf16, 0, index, {}) ? 1 : 0;
  }
  EXPECT_GT(differ_by_nodes, 0);
  EXPECT_GT(differ_by_rounding, 0);
}

// Sums in replica order. With ZeRO-1, a replica gets the sum of the part that it updates.
void sum_replicas(WayRank& rank) {
  ShardedParameter& parameter = rank.parameter;
  const std::int64_t cols = parameter.storage.shape.cols;
  auto sums = parameter.main_grad.as<float>();
  runtime::for_each_element(parameter.local_storage, cols, [&](std::int64_t at, std::int64_t index) {
    sums[static_cast<std::size_t>(at)] = gradient_at(0, parameter.place.replica, 0, index);
  });
  const Replicas replicas(parameter, rank.parallel);
  replicas.sum(parameter, rank.parallel, {}).wait();
  const auto* state = reinterpret_cast<const float*>(parameter.state_gradient());
  runtime::for_each_element(parameter.local_state, cols, [&](std::int64_t at, std::int64_t index) {
    float expected = gradient_at(0, 0, 0, index);
    for (int replica = 1; replica < rank.cuts.replicas; ++replica)
      expected = expected + gradient_at(0, replica, 0, index);
    ASSERT_EQ(state[at], expected) << "element " << index;
  });
  const std::int64_t others = rank.cuts.replicas - 1;
  const std::int64_t received = parameter.splits_state()
                                    ? others * bytes_of(parameter.state_elements(), DType::fp32)
                                    : 2 * others * bytes_of(parameter.shard_elements(), DType::fp32) / (others + 1);
  EXPECT_EQ(total_bytes(rank.ways.replicas), received);
}

TEST(ReplicasWay, AddsInReplicaOrder) {
  for (const int compute : {1, 2})
    for (const int replicas : {1, 2, 3})
      for (const bool zero : {false, true})
        for (const ParameterSpec& spec : way_specs(compute)) {
          SCOPED_TRACE(spec.name + ", replicas " + std::to_string(replicas) + (zero ? ", zero" : ""));
          on_way_ranks({.compute = compute, .parts = 2, .replicas = replicas, .zero = zero}, spec, {}, sum_replicas);
        }
}

}  // namespace
}  // namespace tessera::shard
