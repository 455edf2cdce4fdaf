// A model for tests of steps that follow a schedule. It has tied weights, layers that are used twice, frozen weights,
// skipped branches and recomputation. It computes the expected value of every weight and every gradient.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include "tessera/comm/local/world.h"
#include "tessera/quant/floating.h"
#include "tessera/runtime/runtime.h"
#include "tests/runtime/elements.h"
#include "tests/shard/dense_parallel.h"

namespace tessera::runtime::replay_model {

// Returns logical element i of parameter p after `updates` updates.
inline float weight_value(std::int64_t p, std::int64_t updates, std::int64_t i) {
  return static_cast<float>(p * 1000 + i) * 0.37f + static_cast<float>(updates) * 0.011f;
}
// Returns the value of logical element i of a plane. For a plane with tiles, i is an index in the grid of tiles. An
// 8-bit value has the low bits of the value.
template <typename T>
T plane_value(std::int64_t p, std::size_t plane, std::int64_t updates, std::int64_t i) {
  if constexpr (std::is_same_v<T, std::uint8_t>)
    return static_cast<T>(p * 41 + updates * 7 + i * 3);
  else
    return T(weight_value(p, updates, i) + static_cast<float>(plane) * 0.5f);
}
// Calls visit(T{}) with the C++ type of a plane's elements.
template <typename Visit>
void with_plane_type(quant::DType type, Visit visit) {
  if (type == quant::DType::u8) return visit(std::uint8_t{});
  quant::dispatch_floating(type, visit);
}
// Returns the gradient that use `use` in block `block` contributes. Blocks are counted over the whole run, so the
// gradients of steps differ.
inline float gradient_value(std::int64_t p, std::int64_t block, std::int64_t use, std::int64_t tp, std::int64_t i) {
  return 1.0f / static_cast<float>(1 + ((i * 31 + p * 17 + block * 7 + use * 5 + tp * 3) % 97)) -
         0.01f * static_cast<float>(block % 11);
}

struct Mesh {
  int tp = 1, gtp = 1, dp = 1;
  int ranks() const { return tp * gtp * dp; }
};

struct Flags {
  bool skip_branch = false;    // true: the step does not use the parameter "branch"
  int rank_that_differs = -1;  // rank that consumes "stacked" once more than the other ranks; -1: no rank
};

// A model that uses its parameters in all ways that Program allows, and checks each weight that it reads.
class Model {
 public:
  Model(shard::ParallelGroups& parallel, const RuntimeOptions& options)
      : parallel_(parallel), runtime(parallel, {}, options) {
    const int tp = parallel.program().size();
    const std::int64_t overlapping = std::int64_t{2} * tp + 3;
    std::vector<std::vector<layout::Range>> overlap;
    for (std::int64_t rank = 0; rank < tp; ++rank)
      overlap.push_back({{rank * 2, rank * 2 + 2}, {overlapping - 3, overlapping}});
    runtime.parameters().add(
        {.name = "tied", .dims = {26, 11}, .compute = layout::cut_rows({26, 11}, {{"vocabulary", 26}}, tp)});
    runtime.parameters().add(
        {.name = "stacked", .dims = {14, 5}, .compute = layout::cut_rows({14, 5}, {{"a", 7}, {"b", 7}}, tp)});
    runtime.parameters().add({.name = "columns", .dims = {6, 7}, .compute = layout::cut_cols({6, 7}, tp)});
    runtime.parameters().add(
        {.name = "overlap", .dims = {overlapping, 4}, .compute = layout::rows_by_rank({overlapping, 4}, overlap)});
    runtime.parameters().add({.name = "norm",
                              .dims = {9},
                              .compute = layout::replicated({1, 9}, tp),
                              .sharded = false,
                              .partial_gradient = true});
    runtime.parameters().add(
        {.name = "frozen", .dims = {5, 3}, .compute = layout::replicated({5, 3}, tp), .trainable = false});
    runtime.parameters().add({.name = "branch", .dims = {3, 8}, .compute = layout::cut_cols({3, 8}, tp)});
    runtime.parameters().add({.name = "one row", .dims = {1, 6}, .compute = layout::replicated({1, 6}, tp)});
    // Two parameters with 8-bit data and an fp32 scale for each tile. One is sharded by blocks of rows, the other by
    // columns. The sizes are not multiples of the tile.
    const std::vector<shard::PlaneSpec> planes{{.name = "data", .type = quant::DType::u8},
                                               {.name = "scales", .tile = {.rows = 3, .cols = 4}}};
    runtime.parameters().add({.name = "planes by rows",
                              .dims = {26, 10},
                              .compute = layout::cut_rows({26, 10}, {{"a", 15}, {"b", 11}}, tp),
                              .planes = planes});
    runtime.parameters().add(
        {.name = "planes by columns", .dims = {13, 9}, .compute = layout::cut_cols({13, 9}, tp), .planes = planes});
    // This parameter has another type than the adjacent parameters, with which it may share a unit.
    runtime.parameters().add({.name = "half",
                              .dims = {10, 3},
                              .compute = layout::cut_rows({10, 3}, {{"all", 10}}, tp),
                              .types = shard::ParameterTypes{.model = quant::DType::bf16}});
    EXPECT_EQ(runtime.parameter(runtime.parameters().size() - 1).planes.front().spec.type, quant::DType::bf16);
    updates_.assign(static_cast<std::size_t>(runtime.parameters().size()), 0);
    for (schedule::ParameterId id = 0; id < runtime.parameters().size(); ++id) {
      write(id);
      runtime.program().publish(id);
    }
  }

  void use(schedule::ParameterId id, schedule::PassId pass) {
    const WeightView view = runtime.program().consume(id, pass);
    const shard::ShardedParameter& parameter = runtime.parameter(id);
    for (std::size_t p = 0; p < parameter.planes.size(); ++p) {
      ASSERT_EQ(view.planes[p].type, parameter.planes[p].spec.type);
      addresses.push_back(view.planes[p].data);
      with_plane_type(view.planes[p].type,
                      [&](auto element) { check_plane<decltype(element)>(id, p, view.planes[p].data); });
    }
    runtime.program().release(id, pass);
  }

  template <typename T>
  void check_plane(schedule::ParameterId id, std::size_t p, const void* data) {
    const shard::Plane& plane = runtime.parameter(id).planes[p];
    for_each_element(plane.local_compute, plane.layouts.compute.shape.cols, [&](std::int64_t at, std::int64_t i) {
      const T value = plane_value<T>(id, p, updates_[static_cast<std::size_t>(id)], i);
      ASSERT_EQ(std::memcmp(static_cast<const T*>(data) + at, &value, sizeof value), 0)
          << runtime.parameter(id).spec.name << " " << plane.spec.name << " element " << i;
    });
  }

  void give(schedule::ParameterId id, int microbatch, int use) {
    const shard::ShardedParameter& parameter = runtime.parameter(id);
    if (!parameter.spec.trainable) return;
    const GradientBuffer buffer = runtime.program().grad_buffer(id, microbatch);
    addresses.push_back(buffer.data);
    EXPECT_EQ(buffer.accumulate, use > 0);
    auto* data = static_cast<float*>(buffer.data);
    for_each_element(parameter.local_compute, parameter.storage.shape.cols, [&](std::int64_t at, std::int64_t i) {
      const float value = gradient_value(id, block_, use, parallel_.place().compute, i);
      data[at] = use > 0 ? data[at] + value : value;
    });
    runtime.program().produce(id, microbatch);
  }

  void forward(schedule::PassId pass, const Flags& flags) {
    for (int turn = 0; turn < 2; ++turn) {  // each layer is used twice
      for (schedule::ParameterId id = 1; id < runtime.parameters().size(); ++id)
        if (!(flags.skip_branch && id == 6)) use(id, pass);
      const auto count = static_cast<std::int64_t>(activations_.size());
      runtime.program().wait(
          runtime.program().issue({.out = activations_.data(), .counts = {&count, 1}, .pass = pass}));
    }
  }

  void train(int microbatches, const Flags& flags = {}) {
    const int gtp = parallel_.cuts().parts;
    runtime.program().begin_step(schedule::StepKind::train, microbatches);
    addresses.clear();
    starts_prepared = runtime.graph().can_be_graph();
    for (int mb = 0; mb < microbatches; ++mb) {
      block_ = ((step_ * parallel_.cuts().replicas + parallel_.place().replica) * microbatches + mb) * gtp +
               parallel_.place().part;
      runtime.program().begin_microbatch(mb);
      use(0, {mb, schedule::Pass::forward});
      forward({mb, schedule::Pass::forward}, flags);
      if (parallel_.rank == flags.rank_that_differs) use(1, {mb, schedule::Pass::forward});
      use(0, {mb, schedule::Pass::forward});  // the output layer uses the tied embedding
      use(0, {mb, schedule::Pass::backward});
      give(0, mb, 0);
      forward({mb, schedule::Pass::recompute}, flags);
      for (int turn = 0; turn < 2; ++turn)
        for (schedule::ParameterId id = runtime.parameters().size() - 1; id >= 1; --id) {
          if (flags.skip_branch && id == 6) continue;
          use(id, {mb, schedule::Pass::backward});
          give(id, mb, turn);
        }
      give(0, mb, 1);
      runtime.program().end_microbatch(mb);
    }
    runtime.program().end_step();
    check_gradients(microbatches, flags);
    ++step_;
  }

  void evaluate() {
    runtime.program().begin_step(schedule::StepKind::evaluate, 2);
    for (int mb = 0; mb < 2; ++mb) {
      runtime.program().begin_microbatch(mb);
      use(0, {mb, schedule::Pass::forward});
      forward({mb, schedule::Pass::forward}, {});
      use(0, {mb, schedule::Pass::forward});
      runtime.program().end_microbatch(mb);
    }
    runtime.program().end_step();
  }

  // Replaces the optimizer: changes all values and publishes the weights in the order of first use.
  void update(bool with_amaxes = true) {
    std::vector<schedule::ParameterId> bucket;
    for (const schedule::ParameterId id : runtime.by_first_use()) {
      if (write_update(id)) bucket.push_back(id);
      if (bucket.size() < 3) continue;
      if (with_amaxes) reduce_amaxes();
      runtime.program().publish(bucket);
      bucket.clear();
    }
    if (with_amaxes) reduce_amaxes();
    runtime.program().publish(bucket);
  }
  // Calls Program::reduce_amaxes, as the cast of a bucket does. After a training step, the reduction is an event of the
  // step.
  void reduce_amaxes() {
    std::array<float, 2> amaxes{static_cast<float>(parallel_.rank), -static_cast<float>(parallel_.rank)};
    runtime.program().reduce_amaxes(amaxes);
    EXPECT_EQ(amaxes, (std::array<float, 2>{static_cast<float>(parallel_.world->size() - 1), 0}));
  }
  // Writes the weights as a graph that repeats a step does. GraphSteps::repeat_step has counted the publish events.
  void write_updates() {
    runtime.wait_until_idle();  // waits for the gathers of the step, as a graph would
    for (schedule::ParameterId id = 0; id < runtime.parameters().size(); ++id) write_update(id);
  }
  // Writes a new value of a weight between steps.
  void replace(schedule::ParameterId id) {
    updates_[static_cast<std::size_t>(id)] += 100;
    runtime.wait_until_idle();
    write(id);
    runtime.program().publish(id);
  }

 private:
  bool write_update(schedule::ParameterId id) {  // returns false for a frozen weight
    if (!runtime.parameter(id).spec.trainable) return false;
    ++updates_[static_cast<std::size_t>(id)];
    write(id);
    return true;
  }
  // Writes the part of the weight that this rank updates. The other replicas write the other parts.
  void write(schedule::ParameterId id) {
    shard::ShardedParameter& parameter = runtime.parameter(id);
    for (std::size_t p = 0; p < parameter.planes.size(); ++p)
      with_plane_type(parameter.planes[p].spec.type, [&](auto element) { write_plane<decltype(element)>(id, p); });
  }
  template <typename T>
  void write_plane(schedule::ParameterId id, std::size_t p) {
    shard::Plane& plane = runtime.parameter(id).planes[p];
    for_each_element(plane.local_state, plane.storage.shape.cols, [&](std::int64_t at, std::int64_t i) {
      reinterpret_cast<T*>(plane.state_data())[at] = plane_value<T>(id, p, updates_[static_cast<std::size_t>(id)], i);
    });
  }

  std::vector<int> holders(const shard::ShardedParameter& parameter, std::int64_t index) const {
    std::vector<int> found;
    for (int rank = 0; rank < parameter.spec.compute.size(); ++rank)
      for_each_element(parameter.spec.compute.ranks[static_cast<std::size_t>(rank)], parameter.storage.shape.cols,
                       [&](std::int64_t, std::int64_t at) {
                         if (at == index) found.push_back(rank);
                       });
    return found;
  }

  // Returns the expected gradient: a sum over the uses in a block, over tp ranks, over blocks and over replicas, each
  // in order. One rank alone would add in this order.
  float expected(schedule::ParameterId id, int microbatches, std::int64_t i) {
    const shard::ShardedParameter& parameter = runtime.parameter(id);
    std::vector<int> parts = holders(parameter, i);
    const int gtp = parallel_.cuts().parts;
    // If the weight is replicated over tp, every tp rank has the whole gradient, and only the gradient of the home rank
    // counts.
    float sum = 0;
    for (int replica = 0; replica < parallel_.cuts().replicas; ++replica) {
      float replica_sum = 0;
      for (int b = 0; b < microbatches * gtp; ++b) {
        const std::int64_t block = (step_ * parallel_.cuts().replicas + replica) * microbatches * gtp + b;
        float whole = 0;
        for (std::size_t part = 0; part < parts.size(); ++part) {
          const float first = gradient_value(id, block, 0, parts[part], i);
          const float value = first + gradient_value(id, block, 1, parts[part], i);
          whole = part == 0 ? value : whole + value;
        }
        replica_sum = b == 0 ? whole : replica_sum + whole;
      }
      sum = replica == 0 ? replica_sum : sum + replica_sum;
    }
    return sum;
  }

  void check_gradients(int microbatches, const Flags& flags) {
    for (schedule::ParameterId id = 0; id < runtime.parameters().size(); ++id) {
      shard::ShardedParameter& parameter = runtime.parameter(id);
      if (!parameter.spec.trainable) continue;
      const auto* data = reinterpret_cast<const float*>(parameter.state_gradient());
      for_each_element(parameter.local_state, parameter.storage.shape.cols, [&](std::int64_t at, std::int64_t i) {
        const float value = flags.skip_branch && id == 6 ? 0 : expected(id, microbatches, i);
        ASSERT_EQ(data[at], value) << parameter.spec.name << " element " << i;
      });
    }
  }

  shard::ParallelGroups& parallel_;
  std::int64_t step_ = 0, block_ = 0;
  std::vector<std::int64_t> updates_;
  std::array<float, 16> activations_{};

 public:
  bool starts_prepared = false;        // result of can_be_graph() at the begin of the last training step
  std::vector<const void*> addresses;  // addresses of the model's planes and gradients, in the order of their uses
  Runtime runtime;                     // last member, so that it is destroyed first
};

// `sums_apart`: whether received gradients are added on a separate lane, as on GPUs.
inline void run(const Mesh& mesh, const RuntimeOptions& options, const std::function<void(Model&)>& body,
                bool sums_apart = false) {
  comm::run_local(mesh.ranks(), {}, [&](comm::World& world) {
    shard::ParallelGroups parallel = shard::dense_parallel(world, mesh.tp, mesh.gtp, mesh.dp, /*with_casts=*/true);
    if (sums_apart) parallel.sums = base::make_thread_lane("sums", parallel.clock);
    Model model(parallel, options);
    body(model);
  });
}

class ReplayOnMesh : public ::testing::TestWithParam<Mesh> {};

}  // namespace tessera::runtime::replay_model
