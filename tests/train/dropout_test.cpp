// Tests whole runs with dropout: layouts, policies and repetitions do not change the masks (docs/numerics.md).
#include <gtest/gtest.h>

#include <set>

#include "tessera/base/device.h"
#include "tests/train/compare_runs.h"
#include "tests/train/training.h"

namespace tessera::train {
namespace {

using testing::expect_same_bits;
using testing::expect_within_fp64_bounds;
using testing::run;
using testing::RunOptions;
using testing::RunResult;

constexpr nn::DropoutOptions kDrops{.hidden = 0.2, .embedding = 0.1};

RunOptions dropping_run() {
  return {.model = testing::odd_model(), .blocks = 4, .steps = 3, .dropout = kDrops};
}

TEST(Dropout, GtpDegreesAndRecomputePoliciesGiveTheSameBits) {
  RunOptions options = dropping_run();
  const RunResult expected = run(options);
  for (const auto& [gtp, recompute] :
       {std::pair{1, nn::Recompute::selective}, {2, nn::Recompute::none}, {4, nn::Recompute::full}}) {
    options.gtp = gtp;
    options.recompute = recompute;
    expect_same_bits(expected, run(options), "gtp " + std::to_string(gtp));
  }
}

TEST(Dropout, EachProbabilityAndTheSeedChangeTheRun) {
  RunOptions options = dropping_run();
  options.steps = 1;
  const auto loss_with = [&](const nn::DropoutOptions& dropout, std::uint64_t seed = 5) {
    options.seed = seed;
    options.dropout = dropout;
    return run(options).losses.at(0);
  };
  const double both = loss_with(kDrops), none = loss_with({});
  EXPECT_EQ(none, loss_with({}, 9));
  std::set<double> losses{both, none};
  losses.insert(loss_with({.hidden = 0.2}));
  losses.insert(loss_with({.embedding = 0.1}));
  losses.insert(loss_with(kDrops, 6));
  EXPECT_EQ(losses.size(), 5);
}

// dp 2 adds the replicas in another order.
TEST(Dropout, TpAndDpDegreesAreWithinTheFp64Bounds) {
  RunOptions options = dropping_run();
  options.dtype = quant::DType::fp64;
  options.steps = 8;
  const RunResult expected = run(options);
  struct Mesh {
    int tp, dp;
    bool sequence_parallel;
  };
  for (const Mesh& mesh : {Mesh{2, 1, false}, {2, 1, true}, {3, 1, true}, {1, 2, false}, {2, 2, true}}) {
    options.tp = mesh.tp;
    options.dp = mesh.dp;
    options.sequence_parallel = mesh.sequence_parallel;
    options.recompute = mesh.tp == 3 ? nn::Recompute::full : nn::Recompute::none;
    expect_within_fp64_bounds(expected, run(options),
                              "tp " + std::to_string(mesh.tp) + " dp " + std::to_string(mesh.dp));
  }
}

TEST(Dropout, ExpertLayersHaveTheSameMasksOnEveryMesh) {
  RunOptions options = dropping_run();
  options.model = testing::sparse_model();
  options.experts = nn::ExpertDegrees{};
  options.dtype = quant::DType::fp64;
  options.steps = 4;
  const RunResult expected = run(options);
  options.recompute = nn::Recompute::full;
  expect_same_bits(expected, run(options), "full recompute");
  options.tp = 2;
  options.sequence_parallel = true;
  options.experts = nn::ExpertDegrees{.etp = 1, .ep = 2};
  expect_within_fp64_bounds(expected, run(options), "tp 2, ep 2");
}

// A suppressed step runs again with the same masks. A skipped step uses its number, as it uses its samples.
TEST(Dropout, RepeatedAndSkippedStepsUseTheNumberOfTheirStep) {
  RunOptions options = dropping_run();
  options.steps = 4;
  options.spoiled = {1};
  const RunResult expected = run(options);
  EXPECT_EQ(expected.skipped, (std::vector<bool>{false, true, false, false}));
  options.suppressed = {{0, 1}, {2, 2}};
  options.ahead = 1;
  RunResult repeated = run(options);
  EXPECT_EQ(repeated.suppressed.size(), 3);
  repeated.suppressed.clear();
  expect_same_bits(expected, repeated, "suppressed steps");
}

// The first two steps are recorded; the others are launches, which read the number of their step from memory.
TEST(Dropout, LaunchesOfAGraphUseTheNumberOfTheirStep) {
  if (base::cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  for (const quant::DType dtype : {quant::DType::fp32, quant::DType::bf16}) {
    RunOptions options = dropping_run();
    options.dtype = dtype;
    options.on_gpu = true;
    options.steps = 8;
    const RunResult expected = run(options);
    options.graph = true;
    options.ahead = Trainer::kMaxPending - 1;
    options.suppressed = {{5, 1}};
    RunResult result = run(options);
    EXPECT_GE(result.graph_steps, options.steps - 3);
    result.suppressed.clear();
    expect_same_bits(expected, result, "graph");
  }
}

// At a rate of 0 the weights stay the same, so that only the masks can change the loss.
TEST(Dropout, TheNumberOfAStepDeterminesItsMasks) {
  RunOptions options = dropping_run();
  options.steps = 1;
  std::vector<double> losses;
  options.before_step = [&](Trainer& trainer, int) {
    for (const std::int64_t number : {4, 5, 4}) {
      const StepInput input{
          .tokens = options.seq_len, .batch = [&](int) { return testing::sample(options, 0); }, .step = number};
      losses.push_back(trainer.train_step(input, 0).loss);
    }
  };
  run(options);
  EXPECT_NE(losses.at(0), losses.at(1));
  EXPECT_EQ(losses.at(0), losses.at(2));
}

TEST(Dropout, EvaluationsDropNothing) {
  RunOptions options = dropping_run();
  options.steps = 1;
  std::vector<double> losses;
  const StepInput input{.tokens = options.seq_len, .batch = [&](int) { return testing::sample(options, 0); }};
  // At a rate of 0, the evaluations before and after a step have the same loss.
  options.before_step = [&](Trainer& trainer, int) {
    losses.push_back(trainer.evaluate(input));
    trainer.train_step(input, 0);
    losses.push_back(trainer.evaluate(input));
  };
  for (const nn::DropoutOptions& dropout : {nn::DropoutOptions{}, kDrops}) {
    options.dropout = dropout;
    run(options);
  }
  EXPECT_EQ(losses, std::vector<double>(4, losses.at(0)));
}

}  // namespace
}  // namespace tessera::train
