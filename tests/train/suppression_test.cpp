// Checks that all ranks take the same decision from the stop counters, which travel with the norm. An update that does
// not apply leaves every byte unchanged until the host clears the flag.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "tessera/base/device.h"
#include "tessera/base/error.h"
#include "tessera/comm/local/world.h"
#include "tessera/comm/nccl/world.h"
#include "tessera/nn/mesh_degrees.h"
#include "tessera/train/update/gradient_norm.h"
#include "tessera/train/update/optimizer.h"

namespace tessera::train {
namespace {

// No tile divides the widths.
std::vector<shard::ParameterSpec> stopped_specs() {
  return {{.name = "matrix", .dims = {70, 36}, .compute = layout::replicated({70, 36}, 1)},
          {.name = "other", .dims = {34, 50}, .compute = layout::replicated({34, 50}, 1)},
          {.name = "norm", .dims = {9}, .compute = layout::replicated({1, 9}, 1), .sharded = false}};
}

// One rank's model and the counters that decide about its updates.
struct StoppedRank {
  StoppedRank(comm::World& world, int gtp, int dp, const runtime::RuntimeOptions& options,
              quant::DType type = quant::DType::bf16)
      : parallel(shard::make_parallel_groups(world, nn::rank_layout({.gtp = gtp, .dp = dp}), /*with_casts=*/true)),
        runtime(parallel, {.model = type}, options) {
    for (shard::ParameterSpec& spec : stopped_specs()) runtime.parameters().add(std::move(spec));
    runtime.parameters().add_backward_weights();
    set_initial_values(runtime, 5);
  }
  // Sets every element of the gradient to this number.
  void set_gradient(double value) {
    for (schedule::ParameterId id = 0; id < runtime.parameters().weights(); ++id)
      parallel.kernels().fill(runtime.parameter(id).main_grad.data(), quant::DType::fp32, value,
                              runtime.parameter(id).shard_elements());
  }
  void raise(std::int64_t* counter, double count) { parallel.kernels().fill(counter, quant::DType::i64, count, 1); }
  // Returns the decision about the next step.
  ops::Clip decide(GradientNorm& norm) {
    norm.compute(1.0);
    parallel.compute->synchronize();
    ops::Clip clip;
    base::copy_bytes(&clip, norm.result(), sizeof clip);
    return clip;
  }

  shard::ParallelGroups parallel;
  runtime::Runtime runtime;
};

void expect_decision(const ops::Clip& clip, bool applies, bool suppressed, std::vector<std::int64_t> stops) {
  stops.resize(ops::kStopCounters);
  EXPECT_EQ(clip.applies, applies ? 1 : 0);
  EXPECT_EQ(clip.suppressed, suppressed ? 1 : 0);
  EXPECT_EQ(std::vector<std::int64_t>(clip.stops, clip.stops + ops::kStopCounters), stops);
}

void check_counters(comm::World& world, int gtp, int dp) {
  StoppedRank rank(world, gtp, dp, {.zero = dp > 1});
  GradientNorm norm(rank.runtime);
  std::int64_t* const room = norm.stop_counter("room");
  std::int64_t* const other = norm.stop_counter("other");
  rank.set_gradient(0.5);
  const ops::Clip usual = rank.decide(norm);
  expect_decision(usual, true, false, {});
  EXPECT_EQ(norm.stop_of(usual), std::nullopt);
  // Only one rank.
  const int last = world.size() - 1;
  if (world.rank() == last) rank.raise(other, 3);
  const ops::Clip first = rank.decide(norm);
  expect_decision(first, false, true, {0, 3});
  EXPECT_EQ(norm.stop_of(first), (Stop{.counter = "other", .count = 3}));
  EXPECT_EQ(first.norm, usual.norm);
  EXPECT_EQ(first.factor, usual.factor);
  // The flag stays set; the counters are reset.
  const ops::Clip second = rank.decide(norm);
  expect_decision(second, false, true, {});
  EXPECT_EQ(norm.stop_of(second), std::nullopt);
  norm.clear_suppression();
  expect_decision(rank.decide(norm), true, false, {});
  // All ranks, with sums above 32 bits.
  const auto large = std::int64_t{1} << 40;
  rank.raise(room, static_cast<double>(large));
  if (world.rank() == 0) rank.raise(other, 1);
  const ops::Clip third = rank.decide(norm);
  expect_decision(third, false, true, {large * world.size(), 1});
  EXPECT_EQ(norm.stop_of(third), (Stop{.counter = "room", .count = large * world.size()}));
  norm.clear_suppression();
  // A skipped step does not affect the next one. A step that is both skipped and suppressed counts as suppressed.
  rank.set_gradient(INFINITY);
  expect_decision(rank.decide(norm), false, false, {});
  rank.raise(room, 1);
  expect_decision(rank.decide(norm), false, true, {world.size()});
  rank.set_gradient(0.5);
  expect_decision(rank.decide(norm), false, true, {});
  norm.clear_suppression();
  expect_decision(rank.decide(norm), true, false, {});
}

TEST(StopCounters, AreSummedOverAllRanksAndSetTheFlagUntilItIsCleared) {
  for (const int gtp : {1, 3})
    for (const int dp : {1, 2})
      comm::run_local(gtp * dp, {}, [&](comm::World& world) { check_counters(world, gtp, dp); });
}

TEST(StopCounters, HaveDifferentNamesAndAMaximumNumber) {
  comm::run_local(1, {}, [](comm::World& world) {
    StoppedRank rank(world, 1, 1, {});
    GradientNorm norm(rank.runtime);
    std::int64_t* const first = norm.stop_counter("0");
    EXPECT_THROW(norm.stop_counter("0"), Error);
    for (int i = 1; i < ops::kStopCounters; ++i) EXPECT_EQ(norm.stop_counter(std::to_string(i)), first + i);
    EXPECT_THROW(norm.stop_counter("more"), Error);
  });
}

class Suppression : public ::testing::TestWithParam<base::DeviceKind> {
 protected:
  void SetUp() override {
    if (GetParam() == base::DeviceKind::cuda && base::cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  }
  // With one rank, on the device.
  static void run_one(const std::function<void(comm::World&)>& body) {
    if (GetParam() == base::DeviceKind::cpu) return comm::run_local(1, {}, body);
    comm::NcclOptions options;
    options.store = rendezvous::make_memory_store();
    base::set_device(options.device);
    body(*comm::make_nccl_world(options));
  }
};

TEST_P(Suppression, IsDecidedEquallyOnEveryDevice) {
  run_one([](comm::World& world) { check_counters(world, 1, 1); });
}

// Returns the masters, moments and planes of weights and their backward weights.
std::vector<std::vector<std::byte>> lasting_bytes(StoppedRank& rank, Optimizer& optimizer) {
  rank.parallel.compute->synchronize();
  std::vector<std::vector<std::byte>> all;
  const auto add = [&](const base::Buffer& buffer) {
    all.emplace_back(buffer.size());
    if (buffer.size() > 0) base::copy_bytes(all.back().data(), buffer.data(), buffer.size());
  };
  for (schedule::ParameterId id = 0; id < rank.runtime.parameters().size(); ++id) {
    shard::ShardedParameter& parameter = rank.runtime.parameter(id);
    for (const shard::Plane& plane : parameter.planes) add(plane.data);
    if (id >= rank.runtime.parameters().weights()) continue;
    add(parameter.master);
    optimizer.for_each_plane(id, [&](const ops::StatePlane&, const base::Buffer& state) { add(state); });
  }
  return all;
}

void check_bytes(comm::World& world, const runtime::RuntimeOptions& options, quant::DType type) {
  StoppedRank rank(world, 1, 1, options, type);
  GradientNorm norm(rank.runtime);
  Optimizer optimizer(rank.runtime, ops::one_rule(ops::make_rule({.weight_decay = 0.1})), /*seed=*/1);
  std::int64_t* const stop = norm.stop_counter("stop");
  const auto update = [&](double gradient) {
    optimizer.begin_update(1e-2);
    rank.set_gradient(gradient);
    const ops::Clip clip = rank.decide(norm);
    optimizer.update(norm.result());
    optimizer.confirm_update(clip);
    return lasting_bytes(rank, optimizer);
  };
  const auto before = update(0.01);
  rank.raise(stop, 1);
  EXPECT_TRUE(update(0.02) == before) << "the suppressed step";
  EXPECT_TRUE(update(-0.03) == before) << "the step behind it";
  EXPECT_EQ(optimizer.updates(), 1);
  norm.clear_suppression();
  EXPECT_FALSE(update(0.02) == before) << "the step again";
  EXPECT_EQ(optimizer.updates(), 2);
}

TEST_P(Suppression, ChangesNoByte) {
  using quant::Format;
  run_one([](comm::World& world) {
    check_bytes(world, {}, quant::DType::fp32);
    check_bytes(world, {.split_masters = true}, quant::DType::bf16);
    for (const Format format : {Format::bf16, Format::fp8, Format::fp8_block, Format::mxfp8, Format::nvfp4}) {
      SCOPED_TRACE(name_of(format));
      check_bytes(world, {.wire = {.format = format}}, quant::DType::bf16);
      check_bytes(world, {.wire = {.format = format}, .wire_backward = {{.format = Format::fp8_block}}},
                  quant::DType::bf16);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Devices, Suppression, ::testing::Values(base::DeviceKind::cpu, base::DeviceKind::cuda),
                         [](const auto& info) { return info.param == base::DeviceKind::cpu ? "cpu" : "cuda"; });

}  // namespace
}  // namespace tessera::train
