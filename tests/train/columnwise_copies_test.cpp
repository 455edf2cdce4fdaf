// Trains with weights in fp8 and fp8_block whose backward passes read columnwise copies. The copies change no bit, and
// a residency makes them once.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tessera/schedule/plan/plan.h"
#include "tests/train/compare_runs.h"
#include "tests/train/training.h"

namespace tessera::train {
namespace {

using quant::Format;
using testing::expect_same_bits;
using testing::RunOptions;

// Counters of the last step of rank 0.
struct Copies {
  std::int64_t made = 0;      // launches
  std::int64_t planned = 0;   // copies of the schedule
  std::int64_t weights = 0;   // weights with a copy
  std::int64_t in_arena = 0;  // largest number of bytes that the schedule has used in the gather arena
  std::int64_t arena = 0;     // bytes of the gather arena
};

testing::RunResult run_and_count(RunOptions options, Copies& copies) {
  options.after_step = [&](Trainer& trainer, int step) {
    if (trainer.parallel().rank != 0 || step + 1 < options.steps) return;
    const int microbatches = options.blocks / (options.gtp * options.dp);
    const auto* schedule = trainer.runtime().schedule(schedule::StepKind::train, microbatches);
    ASSERT_NE(schedule, nullptr);
    copies.made = trainer.runtime().statistics().columnwise_copies;
    copies.planned = static_cast<std::int64_t>(schedule->copies.size());
    for (const shard::ParameterSpec& spec : trainer.runtime().parameters().specs())
      copies.weights += shard::reads_columnwise(spec) ? 1 : 0;
    copies.in_arena = trainer.runtime().schedule_statistics().gather_peak_bytes;
    copies.arena = schedule->gather_arena;
  };
  return testing::run(options);
}

class ColumnwiseCopies : public ::testing::TestWithParam<Format> {
 protected:
  RunOptions options(int microbatches) const {
    models::DecoderConfig model = testing::odd_model();
    if (GetParam() == Format::fp8_block) model.num_heads = 24, model.num_kv_heads = 4;  // tp ranks share no tile
    return {.model = model,
            .dtype = quant::DType::bf16,
            .blocks = microbatches,
            .steps = 3,
            .wire = GetParam(),
            .products = GetParam()};
  }
  // The same run, in which every product quantizes its weight and no copy exists. Its masters are bf16, so its weights
  // are not compared.
  static testing::RunResult without_copies(RunOptions options) {
    options.wire = Format::bf16;
    return without_weights(testing::run(options));
  }
  static testing::RunResult without_weights(testing::RunResult result) {
    std::erase_if(result.tensors, [](const auto& named) {
      return named.first.starts_with("weight/") || named.first.starts_with("master/");
    });
    return result;
  }
};

TEST_P(ColumnwiseCopies, AreMadeOnceAResidencyAndChangeNoBit) {
  for (const int microbatches : {1, 4})
    for (const int gtp : {1, 2}) {
      RunOptions run = options(microbatches * gtp);
      run.gtp = gtp;
      const testing::RunResult expected = without_copies(run);
      for (const std::int64_t budget : {schedule::kMinimum, schedule::kUnlimited}) {
        const std::string what = fmt::format("{} microbatches, gtp {}, budget {}", microbatches, gtp, budget);
        run.gather_budget = budget;
        Copies copies;
        expect_same_bits(expected, without_weights(run_and_count(run, copies)), what);
        EXPECT_EQ(copies.made, copies.planned) << what;
        EXPECT_EQ(copies.in_arena, copies.arena) << what;
        EXPECT_GT(copies.weights, 0) << what;
        if (budget == schedule::kMinimum && microbatches > 1)
          EXPECT_GT(copies.made, copies.weights) << what;
        else
          EXPECT_EQ(copies.made, copies.weights) << what;
      }
    }
}

// Poison shows a read of a copy after its interval, and delays a read before its weight has arrived.
TEST_P(ColumnwiseCopies, ChangeNoBitInOtherMeshesAndPolicies) {
  struct Variation {
    const char* name;
    int tp, gtp, dp;
    bool zero;
    nn::Recompute recompute;
    std::int64_t coalesce_bytes;
  };
  for (const Variation& it :
       {Variation{"tp 2", 2, 1, 1, false, nn::Recompute::none, 0},
        Variation{"tp 2, gtp 2, full recomputation", 2, 2, 1, false, nn::Recompute::full, 1 << 20},
        Variation{"dp 2 with ZeRO-1, selective recomputation", 1, 1, 2, true, nn::Recompute::selective, 1 << 20},
        Variation{"gtp 2, dp 2 with ZeRO-1", 1, 2, 2, true, nn::Recompute::none, 1 << 20}}) {
    RunOptions run = options(2 * it.gtp * it.dp);
    run.tp = it.tp, run.gtp = it.gtp, run.dp = it.dp, run.zero = it.zero;
    run.sequence_parallel = it.tp > 1;
    run.recompute = it.recompute;
    run.coalesce_bytes = it.coalesce_bytes;
    const testing::RunResult expected = without_copies(run);
    run.replay = {.poison = true, .delay_seed = 3};
    for (const std::int64_t budget : {schedule::kMinimum, schedule::kUnlimited}) {
      run.gather_budget = budget;
      Copies copies;
      expect_same_bits(expected, without_weights(run_and_count(run, copies)), fmt::format("{}, {}", it.name, budget));
      EXPECT_EQ(copies.made, copies.planned) << it.name;
      EXPECT_EQ(copies.in_arena, copies.arena) << it.name;
    }
  }
}

// Weights of other formats in backward passes are separate parameters. Only those that native products read have
// copies.
TEST_P(ColumnwiseCopies, BelongToBackwardWeights) {
  RunOptions run = options(4);
  run.gather_budget = schedule::kUnlimited;
  run.gtp = 2;
  run.wire_backward = Format::bf16;
  Copies copies;
  run_and_count(run, copies);
  EXPECT_EQ(copies.weights, 0);
  EXPECT_EQ(copies.made, 0);
  run.wire_backward = GetParam();
  run.wire = Format::mxfp8;
  run_and_count(run, copies = {});
  EXPECT_GT(copies.weights, 0);
  EXPECT_EQ(copies.made, copies.weights);
}

INSTANTIATE_TEST_SUITE_P(Formats, ColumnwiseCopies, ::testing::Values(Format::fp8, Format::fp8_block),
                         [](const auto& format) { return std::string(name_of(format.param)); });

}  // namespace
}  // namespace tessera::train
