// Runs with nvfp4 products, with the transform of the operands of wgrad and with stochastic rounding of gradients.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "tessera/base/device.h"
#include "tests/train/compare_runs.h"
#include "tests/train/pairwise.h"
#include "tests/train/training.h"

namespace tessera::train::recipe {
namespace {

using quant::Format;
using testing::Choice;
using testing::expect_same_bits;
using testing::run;
using testing::RunOptions;
using testing::RunResult;

// All columns of a rank are even, as 4-bit elements require.
models::DecoderConfig even_widths() {
  models::DecoderConfig config = testing::odd_model();
  config.intermediate_size = 40;
  config.num_heads = 4, config.num_kv_heads = 2;  // parts of tp 2 share no head
  return config;
}

struct Mesh {
  int tp, gtp, dp;
};

// A block has 18 tokens, so the transform adds rows of zeros.
RunOptions nvfp4_run(const Mesh& mesh, Format wire) {
  return {.model = even_widths(),
          .tp = mesh.tp,
          .gtp = mesh.gtp,
          .dp = mesh.dp,
          .dtype = quant::DType::bf16,
          .sequence_parallel = mesh.tp > 1,
          .blocks = 4,
          .seq_len = 18,
          .steps = 20,
          .wire = wire,
          .products = Format::nvfp4,
          .clip = 0.5};
}

enum Factor { kKind, kStorage, kWire, kRecompute, kMemory, kPoison, kDelays, kZero, kCoalesce, kOverlap };
const std::vector<int> kLevels{4, 2, 2, 3, 2, 2, 2, 2, 2, 2};  // number of levels of each factor

int level(const Choice& choice, Factor factor) {
  return choice[static_cast<std::size_t>(factor)];
}

// Meshes of one kind have equal tp and dp. The first mesh of a kind has the least gtp.
constexpr Mesh kMeshes[][3] = {{{1, 1, 1}, {1, 2, 1}, {1, 4, 1}},
                               {{2, 1, 1}, {2, 2, 1}, {2, 4, 1}},
                               {{1, 1, 2}, {1, 2, 2}, {1, 1, 2}},
                               {{2, 1, 2}, {2, 2, 2}, {2, 1, 2}}};
constexpr std::array kWires{Format::nvfp4, Format::bf16};

RunOptions chunked(RunOptions options) {
  options.product_options.tp_chunks = options.tp;
  return options;
}

RunOptions options_of(const Choice& choice) {
  RunOptions options =
      chunked(nvfp4_run(kMeshes[level(choice, kKind)][1 + level(choice, kStorage)], kWires[level(choice, kWire)]));
  options.recompute = static_cast<nn::Recompute>(level(choice, kRecompute));
  options.least_memory = level(choice, kMemory) == 1;
  options.replay = {.poison = level(choice, kPoison) == 1,
                    .delay_seed = level(choice, kDelays) == 0 ? 0U : 5U,
                    .longest_delay = 0.0003};
  options.zero = level(choice, kZero) == 1;
  options.coalesce_bytes = level(choice, kCoalesce) == 0 ? 0 : 1 << 20;
  options.product_options.tp_overlap = level(choice, kOverlap) == 1;
  return options;
}

// The runs are a pairwise covering set. The seed is printed; TESSERA_COVER_SEED sets it.
TEST(Nvfp4Recipe, HasTheSameBitsOnEveryStorageAndPolicy) {
  const unsigned seed = testing::number_of_environment("TESSERA_COVER_SEED", 1);
  const std::vector<Choice> choices = testing::pairwise_set(kLevels, seed, [](const Choice&) { return true; });
  fmt::print("seed {}: {} runs cover all pairs of values\n", seed, choices.size());
  std::map<std::pair<int, int>, RunResult> results;  // of the first mesh of a kind, by kind and wire format
  for (const Choice& choice : choices) {
    const auto [found, is_new] = results.try_emplace({level(choice, kKind), level(choice, kWire)});
    RunResult& expected = found->second;
    if (is_new) {
      expected = run(chunked(nvfp4_run(kMeshes[level(choice, kKind)][0], kWires[level(choice, kWire)])));
      EXPECT_EQ(expected.skipped, std::vector<bool>(expected.skipped.size(), false));
      EXPECT_LT(expected.losses.back(), expected.losses.front());
    }
    expect_same_bits(expected, run(options_of(choice)), fmt::format("choice {}", fmt::join(choice, " ")));
  }
}

TEST(Nvfp4Recipe, EachPartAndTheSeedChangeTheGradients) {
  RunOptions options = nvfp4_run({1, 1, 1}, Format::nvfp4);
  testing::expect_gradients_of_each_recipe(options);
}

// Each step has other random numbers. A repeated step has the same ones, and evaluations use none.
TEST(Nvfp4Recipe, RepeatedStepsHaveTheSameBits) {
  RunOptions options = nvfp4_run({1, 2, 1}, Format::nvfp4);
  options.steps = 6;
  const RunResult expected = run(options);
  options.suppressed = {{1, 2}, {4, 1}};
  options.evaluated = {2, 3};
  const RunResult repeated = run(options);
  EXPECT_EQ(expected.losses, repeated.losses);
  EXPECT_EQ(expected.tensors, repeated.tensors);
}

// At a rate of 0 the weights stay the same, so that only random numbers can change the gradients.
TEST(Nvfp4Recipe, StepAndTokensDetermineTheRandomNumbers) {
  RunOptions options = nvfp4_run({1, 1, 1}, Format::nvfp4);
  options.steps = 1;
  for (const auto rounding : {nn::GradientRounding::stochastic, nn::GradientRounding::nearest}) {
    options.product_options.rounding = rounding;
    std::vector<double> norms;
    options.before_step = [&](Trainer& trainer, int) {
      for (const auto& [number, first] : {std::pair<std::int64_t, std::int64_t>{7, 0}, {8, 0}, {7, 0}, {7, 18}}) {
        const auto batch = [&, first = first](int) {
          models::Batch result = testing::sample(options, 0);
          result.first_token = first;
          return result;
        };
        const StepInput input{.tokens = options.seq_len, .batch = batch, .step = number};
        norms.push_back(trainer.train_step(input, /*lr=*/0).grad_norm);
      }
    };
    run(options);
    EXPECT_EQ(norms.at(0), norms.at(2));
    for (const std::size_t other : {1, 3})
      EXPECT_EQ(norms.at(0) == norms.at(other), rounding == nn::GradientRounding::nearest) << other;
  }
}

TEST(Nvfp4RecipeOnCuda, GraphsAndPoliciesHaveTheSameBits) {
  if (base::cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  RunOptions options = nvfp4_run({1, 1, 1}, Format::nvfp4);
  options.on_gpu = true;
  options.steps = 8;
  const RunResult expected = run(options);
  options.graph = true;
  options.ahead = Trainer::kMaxPending - 1;
  options.suppressed = {{5, 1}};
  for (const nn::Recompute policy : {nn::Recompute::none, nn::Recompute::full}) {
    options.recompute = policy;
    RunResult result = run(options);
    EXPECT_GE(result.graph_steps, options.steps - 3);
    result.suppressed.clear();
    expect_same_bits(expected, result, "graph");
  }
}

}  // namespace
}  // namespace tessera::train::recipe
