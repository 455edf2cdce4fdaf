// Tests the exchanges between replicas against loops over numbers: a whole step with and without ZeRO-1, empty parts,
// weights of several planes, and dead places.
#include <gtest/gtest.h>

#include <atomic>

#include "tessera/shard/ways/reduction.h"
#include "tessera/shard/ways/replicas.h"
#include "tests/shard/way_ranks.h"

namespace tessera::shard {
namespace {

using quant::DType;

// Returns one rank's gradient of a microbatch: numbers whose sums depend on the order of the additions.
float share_at(int replica, int microbatch, int part, std::int64_t index) {
  const std::int64_t mixed = (index * 29 + replica * 11 + microbatch * 17 + part * 5) % 89;
  return 1.0F / static_cast<float>(1 + mixed) - 0.2F * static_cast<float>(replica);
}

float as_type(DType type, float value) {
  return type == DType::bf16 ? static_cast<float>(quant::bfloat16(value)) : value;
}

constexpr int kMicrobatches = 2;

// Adds a replica's microbatches in order, and in each microbatch the parts in rank order.
float replica_gradient(const WayMesh& mesh, DType wire, int replica, std::int64_t index) {
  float sum = 0;
  for (int microbatch = 0; microbatch < kMicrobatches; ++microbatch)
    for (int part = 0; part < mesh.parts; ++part) {
      const float share = as_type(wire, share_at(replica, microbatch, part, index));
      sum = microbatch + part == 0 ? share : sum + share;
    }
  return sum;
}
float step_gradient(const WayMesh& mesh, DType wire, std::int64_t index) {
  float sum = replica_gradient(mesh, wire, 0, index);
  for (int replica = 1; replica < mesh.replicas; ++replica) sum = sum + replica_gradient(mesh, wire, replica, index);
  return sum;
}

float old_weight(std::int64_t index) {
  return 0.5F * static_cast<float>(index % 13);
}
float new_weight(const WayMesh& mesh, const ParameterTypes& types, std::int64_t index) {
  return as_type(types.model, old_weight(index) - step_gradient(mesh, types.wire, index));
}

void reduce_microbatches(WayRank& rank) {
  ShardedParameter& parameter = rank.parameter;
  const Reducer reducer(parameter, rank.parallel, rank.cuts, rank.ways.reduce);
  for (int microbatch = 0; microbatch < kMicrobatches; ++microbatch) {
    Guarded staging(reducer.staging_bytes()), scratch(reducer.scratch_bytes());
    runtime::for_each_element(parameter.local_compute, parameter.storage.shape.cols,
                              [&](std::int64_t at, std::int64_t index) {
                                put(staging.data(), reducer.staging_type(), at,
                                    share_at(parameter.place.replica, microbatch, parameter.place.part, index));
                              });
    Reducing member{&parameter, &reducer, staging.data(), scratch.data()};
    reduce({&member, 1}, rank.parallel, /*is_last=*/microbatch == kMicrobatches - 1).wait();
  }
}

// Runs one step: reduces all microbatches, sums over the replicas, updates this rank's part of the weight, and gathers
// the other parts.
void take_step(WayRank& rank, const WayMesh& mesh) {
  ShardedParameter& parameter = rank.parameter;
  const std::int64_t cols = parameter.storage.shape.cols;
  const ParameterTypes& types = parameter.types;
  runtime::for_each_element(parameter.local_storage, cols, [&](std::int64_t at, std::int64_t index) {
    put(parameter.weight().data(), types.model, at, old_weight(index));
  });
  reduce_microbatches(rank);
  const Replicas replicas(parameter, rank.parallel);
  replicas.sum(parameter, rank.parallel, {}).wait();
  const auto* gradient = reinterpret_cast<const float*>(parameter.state_gradient());
  runtime::for_each_element(parameter.local_state, cols, [&](std::int64_t at, std::int64_t index) {
    ASSERT_EQ(gradient[at], step_gradient(mesh, types.wire, index)) << "element " << index;
    const float weight = get(parameter.state_weight(), types.model, at);
    ASSERT_EQ(weight, old_weight(index)) << "element " << index;
    put(parameter.state_weight(), types.model, at, weight - gradient[at]);
  });
  EXPECT_EQ(parameter.splits_state(), mesh.zero && mesh.replicas > 1 && parameter.spec.sharded);
  if (parameter.splits_state()) replicas.gather_updates(parameter, rank.parallel, {}).wait();
  runtime::for_each_element(parameter.local_storage, cols, [&](std::int64_t at, std::int64_t index) {
    ASSERT_EQ(get(parameter.weight().data(), types.model, at), new_weight(mesh, types, index)) << "element " << index;
  });
}

// Returns matrices with fewer rows than ranks that store or update them, and a vector that is not sharded. One matrix
// is cut by columns.
std::vector<ParameterSpec> narrow_specs(int compute) {
  const std::vector<std::vector<layout::Range>> columns = compute == 1
                                                              ? std::vector<std::vector<layout::Range>>{{{0, 7}}}
                                                              : std::vector<std::vector<layout::Range>>{{}, {{0, 7}}};
  return {
      {.name = "element", .dims = {1, 1}, .compute = layout::cut_rows({1, 1}, {{"all", 1}}, compute)},
      {.name = "rows", .dims = {5, 3}, .compute = layout::cut_rows({5, 3}, {{"all", 5}}, compute)},
      {.name = "columns", .dims = {3, 7}, .compute = layout::cols_by_rank({3, 7}, columns), .produced_once = true},
      {.name = "vector", .dims = {3}, .compute = layout::replicated({1, 3}, compute), .sharded = false},
  };
}

TEST(ReplicasWay, AStepGivesTheSameWeightsWithAndWithoutZero) {
  std::atomic<int> without_state = 0;
  for (const int compute : {1, 2})
    for (const auto& [parts, replicas] : {std::pair{1, 1}, {1, 2}, {2, 3}, {1, 5}, {2, 4}})
      for (const bool zero : {false, true})
        for (const ParameterSpec& spec : narrow_specs(compute))
          for (const DType type : {DType::fp32, DType::bf16}) {
            const WayMesh mesh{.compute = compute, .parts = parts, .replicas = replicas, .zero = zero};
            SCOPED_TRACE(spec.name + ", parts " + std::to_string(parts) + ", replicas " + std::to_string(replicas) +
                         (zero ? ", zero" : "") + (type == DType::bf16 ? ", bf16" : ""));
            on_way_ranks(mesh, spec, {.model = type, .wire = type}, [&](WayRank& rank) {
              take_step(rank, mesh);
              const ShardedParameter& parameter = rank.parameter;
              if (parameter.shard_elements() > 0 && parameter.state_elements() == 0) ++without_state;
            });
          }
  EXPECT_GT(without_state, 0);
}

TEST(ReplicasWay, OtherOrdersGiveOtherBits) {
  const WayMesh mesh{.parts = 2, .replicas = 4};
  int differ_by_order = 0, differ_by_rounding = 0;
  for (std::int64_t index = 0; index < 15; ++index) {
    float backwards = replica_gradient(mesh, DType::fp32, 3, index);
    for (int replica = 2; replica >= 0; --replica)
      backwards = backwards + replica_gradient(mesh, DType::fp32, replica, index);
    differ_by_order += backwards != step_gradient(mesh, DType::fp32, index) ? 1 : 0;
    differ_by_rounding += step_gradient(mesh, DType::bf16, index) != step_gradient(mesh, DType::fp32, index) ? 1 : 0;
  }
  EXPECT_GT(differ_by_order, 0);
  EXPECT_GT(differ_by_rounding, 0);
}

// A replica with fewer ranks stores larger parts of the weight.
TEST(ReplicasWay, AddsPartsOfReplicasWithDifferentSharding) {
  for (const int compute : {1, 2})
    for (const int parts : {2, 3})
      for (const ParameterSpec& spec : way_specs(compute)) {
        WayMesh mesh{.compute = compute, .parts = parts, .replicas = 3};
        for (int user = 0; user < compute; ++user)  // the last part of the second replica
          mesh.dead.push_back(compute * (2 * parts - 1) + user);
        SCOPED_TRACE(spec.name + ", compute " + std::to_string(compute) + ", parts " + std::to_string(parts));
        on_way_ranks(mesh, spec, {.model = DType::bf16}, [&](WayRank& rank) {
          ShardedParameter& parameter = rank.parameter;
          EXPECT_EQ(rank.cuts.parts, parts - (parameter.place.replica == 1 ? 1 : 0));
          const std::int64_t cols = parameter.storage.shape.cols;
          const auto sums = parameter.main_grad.as<float>();
          runtime::for_each_element(parameter.local_storage, cols, [&](std::int64_t at, std::int64_t index) {
            sums[static_cast<std::size_t>(at)] = share_at(parameter.place.replica, 0, 0, index);
          });
          Replicas(parameter, rank.parallel).sum(parameter, rank.parallel, {}).wait();
          runtime::for_each_element(parameter.local_storage, cols, [&](std::int64_t at, std::int64_t index) {
            const float expected = share_at(0, 0, 0, index) + share_at(1, 0, 0, index) + share_at(2, 0, 0, index);
            ASSERT_EQ(sums[static_cast<std::size_t>(at)], expected) << "element " << index;
          });
        });
      }
}

// Returns the value of every byte of an element of a plane.
std::byte plane_byte(std::size_t plane, std::int64_t index, int version) {
  return static_cast<std::byte>((index * 7 + static_cast<std::int64_t>(plane) * 3 + 1 + version * 101) % 251);
}
void write_plane(Plane& plane, std::size_t number, const layout::LocalLayout& local, std::byte* memory, int version) {
  const std::int64_t size = plane.bytes(1);
  runtime::for_each_element(local, plane.storage.shape.cols, [&](std::int64_t at, std::int64_t index) {
    std::fill_n(memory + at * size, size, plane_byte(number, index, version));
  });
}

// Tiles have 4 rows. The second storing rank has two tiles for three replicas.
TEST(PublishWay, SendsAllPlanesToEachReplica) {
  const ParameterSpec spec{.name = "planes",
                           .dims = {18, 12},
                           .compute = layout::replicated({18, 12}, 1),
                           .planes = {{.name = "data", .type = DType::u8},
                                      {.name = "scales", .tile = {.rows = 4, .cols = 8}},
                                      {.name = "rows", .type = DType::bf16, .tile = {.rows = 2, .cols = 12}}}};
  for (const int replicas : {2, 3, 6})
    on_way_ranks({.parts = 2, .replicas = replicas, .zero = true}, spec, {}, [](WayRank& rank) {
      std::vector<Plane>& planes = rank.parameter.planes;
      for (std::size_t p = 0; p < planes.size(); ++p) {
        write_plane(planes[p], p, planes[p].local_storage, planes[p].data.data(), 0);
        write_plane(planes[p], p, planes[p].local_state, planes[p].state_data(), 1);
      }
      Replicas(rank.parameter, rank.parallel).gather_updates(rank.parameter, rank.parallel, {}).wait();
      for (std::size_t p = 0; p < planes.size(); ++p) {
        const std::int64_t size = planes[p].bytes(1), cols = planes[p].storage.shape.cols;
        runtime::for_each_element(planes[p].local_storage, cols, [&](std::int64_t at, std::int64_t index) {
          for (std::int64_t byte = at * size; byte < (at + 1) * size; ++byte)
            ASSERT_EQ(planes[p].data.data()[byte], plane_byte(p, index, 1)) << "element " << index << " of plane " << p;
        });
      }
    });
}

}  // namespace
}  // namespace tessera::shard
