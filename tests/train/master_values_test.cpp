// Masters of bf16 weights follow the rule of ops/optimizer/split_master.h, wherever their values come from.
#include "tessera/train/update/master_values.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tessera/comm/local/world.h"
#include "tessera/nn/mesh_degrees.h"
#include "tessera/ops/optimizer/split_master.h"
#include "tessera/train/trainer_checkpoint.h"
#include "tests/train/training.h"

namespace tessera::train::master_values {
namespace {

using quant::DType, quant::Format;

constexpr float kTie = 1 + 0x1p-8F;

TEST(MasterValues, InitialValuesFollowTheRuleOfTies) {
  for (const Format wire : {Format::bf16, Format::fp8, Format::nvfp4})
    comm::run_local(2, {}, [&](comm::World& world) {
      shard::ParallelGroups parallel =
          shard::make_parallel_groups(world, nn::rank_layout({.gtp = 2}), /*with_casts=*/true);
      runtime::Runtime runtime(parallel, {.model = DType::bf16}, {.wire = {.format = wire}});
      const layout::Layout compute = layout::replicated({64, 32}, 1);
      for (const bool is_wide : {false, true})
        runtime.parameters().add({.name = is_wide ? "wide" : "narrow",
                                  .dims = {64, 32},
                                  .compute = compute,
                                  .initial_deviation = 0,
                                  .initial_value = kTie,
                                  .is_wide = is_wide,
                                  .takes_formats = !is_wide});
      set_initial_values(runtime, 1);
      for (const schedule::ParameterId id : {0, 1}) {
        MasterValues masters(runtime.parameter(id), parallel);
        const float expected = id == 0 ? ops::representable(kTie) : kTie;
        const auto* values = reinterpret_cast<const float*>(masters.data());
        for (std::int64_t i = 0; i < runtime.parameter(id).state_elements(); ++i) ASSERT_EQ(values[i], expected) << id;
      }
    });
}

TEST(MasterValues, LoadedMastersFollowTheRuleOfTies) {
  for (const Format wire : {Format::bf16, Format::nvfp4}) {
    testing::RunOptions options{
        .model = testing::odd_model(), .gtp = 2, .dtype = DType::bf16, .steps = 0, .wire = wire};
    options.model.hidden_size = 32, options.model.intermediate_size = 48, options.model.head_dim = 4;
    options.model.num_heads = 8, options.model.num_kv_heads = 4;
    options.at_end = [&](Trainer& trainer) {
      load_tensors(trainer, {.has_masters = true, .has_state = false, .read = [](const auto& request, bool) {
                               const auto count = static_cast<std::size_t>(request.local.size);
                               if (request.dtype == DType::fp32)
                                 std::fill_n(static_cast<float*>(request.data), count, kTie);
                               else
                                 std::fill_n(static_cast<quant::bfloat16*>(request.data), count, quant::bfloat16(kTie));
                             }});
      for (schedule::ParameterId id = 0; id < trainer.runtime().parameters().weights(); ++id) {
        shard::ShardedParameter& parameter = trainer.runtime().parameter(id);
        MasterValues masters(parameter, trainer.parallel());
        const auto* values = reinterpret_cast<const float*>(masters.data());
        for (std::int64_t i = 0; i < parameter.state_elements(); ++i)
          ASSERT_EQ(values[i], ops::representable(kTie)) << parameter.spec.name;
      }
    };
    run(options);
  }
}

}  // namespace
}  // namespace tessera::train::master_values
