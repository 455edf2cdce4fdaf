// Tests the ways of a weight one by one: to the ranks that use it, and between replicas.
#include <gtest/gtest.h>

#include <future>

#include "tessera/shard/ways/materialize.h"
#include "tessera/shard/ways/replicas.h"
#include "tests/shard/way_ranks.h"

namespace tessera::shard {
namespace {

using mesh::Transfer;
using quant::DType;

// Returns values below 256, which bf16 represents exactly. Each version has other values.
float weight_at(std::int64_t index, int version = 0) {
  return static_cast<float>(index + 1 + 100 * version);
}

void write_weight(ShardedParameter& parameter, const layout::LocalLayout& local, std::byte* memory, int version) {
  runtime::for_each_element(local, parameter.storage.shape.cols, [&](std::int64_t at, std::int64_t index) {
    put(memory, parameter.types.model, at, weight_at(index, version));
  });
}

void expect_weight(const ShardedParameter& parameter, const layout::LocalLayout& local, const std::byte* memory,
                   int version) {
  runtime::for_each_element(local, parameter.storage.shape.cols, [&](std::int64_t at, std::int64_t index) {
    ASSERT_EQ(get(memory, parameter.types.model, at), weight_at(index, version)) << "element " << index;
  });
}

// Checks the bytes of both hops: the missing elements of the home part, then those of the compute part.
void expect_gathered_bytes(const WayRank& rank) {
  const ShardedParameter& parameter = rank.parameter;
  const std::int64_t cols = parameter.storage.shape.cols;
  const auto lacking = [&](const layout::LocalLayout& wanted, const layout::LocalLayout& held) {
    std::int64_t elements = 0;
    for (const std::int64_t index : indices_of(wanted, cols)) elements += has_index(held, cols, index) ? 0 : 1;
    return bytes_of(elements, parameter.types.model);
  };
  EXPECT_EQ(bytes_over(rank.ways.gather, Transfer::gather), lacking(parameter.local_home, parameter.local_storage));
  EXPECT_EQ(bytes_over(rank.ways.gather, Transfer::gather_compute),
            lacking(parameter.local_compute, parameter.local_home));
}

void gather(WayRank& rank) {
  ShardedParameter& parameter = rank.parameter;
  write_weight(parameter, parameter.local_storage, parameter.weight().data(), 0);
  const Materializer materializer(parameter, rank.parallel, rank.ways.gather);
  expect_gathered_bytes(rank);
  EXPECT_EQ(materializer.has_last_hop(), schedule::has_hop(rank.ways.gather, Transfer::gather_compute));
  EXPECT_EQ(materializer.is_resident(), rank.ways.gather.empty());
  if (materializer.is_resident())
    return expect_weight(parameter, parameter.local_compute, parameter.weight().data(), 0);
  Guarded buffer(materializer.bytes());
  comm::Communicator* compute = materializer.has_last_hop() ? &rank.parallel.of(0, Transfer::gather_compute) : nullptr;
  materializer.start(parameter, {rank.parallel.of(0, Transfer::gather), compute}, buffer.data(), {}).wait();
  expect_weight(parameter, parameter.local_compute, buffer.data() + materializer.offset_of(0), 0);
  expect_weight(parameter, parameter.local_storage, parameter.weight().data(), 0);
  EXPECT_TRUE(buffer.is_guard_whole());
}

TEST(GatherWay, MovesItsComputePartToEachRank) {
  for (const int compute : {1, 2, 3})
    for (const int parts : {1, 2, 3})
      for (const ParameterSpec& spec : way_specs(compute))
        for (const DType type : {DType::fp32, DType::bf16}) {
          SCOPED_TRACE(spec.name + ", compute " + std::to_string(compute) + ", parts " + std::to_string(parts));
          on_way_ranks({.compute = compute, .parts = parts}, spec, {.model = type}, gather);
        }
}

// Each replica has written its part of version 1. The rest of its stored weight is still version 0.
TEST(PublishWay, SendsTheUpdatedPartsToEachReplica) {
  for (const int compute : {1, 2})
    for (const int replicas : {1, 2, 3})
      for (const ParameterSpec& spec : way_specs(compute)) {
        SCOPED_TRACE(spec.name + ", replicas " + std::to_string(replicas));
        on_way_ranks({.compute = compute, .parts = 2, .replicas = replicas, .zero = true}, spec, {.model = DType::bf16},
                     [](WayRank& rank) {
                       ShardedParameter& parameter = rank.parameter;
                       write_weight(parameter, parameter.local_storage, parameter.weight().data(), 0);
                       EXPECT_EQ(parameter.splits_state(), schedule::has_hop(rank.ways.publish, Transfer::publish));
                       if (!parameter.splits_state()) return;
                       write_weight(parameter, parameter.local_state, parameter.state_weight(), 1);
                       Replicas(parameter, rank.parallel).gather_updates(parameter, rank.parallel, {}).wait();
                       expect_weight(parameter, parameter.local_storage, parameter.weight().data(), 1);
                       EXPECT_EQ(total_bytes(rank.ways.publish),
                                 bytes_of(parameter.shard_elements() - parameter.state_elements(), DType::bf16));
                     });
      }
}

// The reader of a weight that does not move must wait for the earlier work of the lane.
TEST(RunAll, WithoutMovementsIsDoneAfterTheLanesWork) {
  comm::run_local(1, {}, [](comm::World& world) {
    const auto group = world.make_group("alone", {{0}});
    std::promise<void> published;
    group->lane().run([&] { published.get_future().wait(); });
    const base::Fence done = run_all(*group, {});
    EXPECT_FALSE(done.done());
    published.set_value();
    done.wait();
  });
}

}  // namespace
}  // namespace tessera::shard
