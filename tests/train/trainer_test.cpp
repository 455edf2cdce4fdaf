// Tests the rule of docs/numerics.md on whole runs: the layout does not change the numbers, or only within a bound.
#include "tessera/train/trainer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cmath>
#include <thread>

#include "tests/train/compare_runs.h"
#include "tests/train/training.h"

namespace tessera::train {
namespace {

using testing::expect_same_bits;
using testing::largest;
using testing::largest_difference;
using testing::odd_model;
using testing::run;
using testing::RunOptions;
using testing::RunResult;

struct Class {
  const char* name;
  int tp, dp;
  bool sequence_parallel;
};

struct NamedModel {
  const char* name;
  models::DecoderConfig (*config)();
  int turn;  // selects one of several settings of a test; differs between models
};
constexpr NamedModel kModels[] = {
    {"plain", testing::odd_model, 0}, {"biased", testing::biased_model, 1}, {"normed", testing::normed_model, 2}};

class SameBits : public ::testing::TestWithParam<std::tuple<NamedModel, Class, quant::DType>> {};

TEST_P(SameBits, OverGtpDegreesAndRecomputePolicies) {
  const auto& [model, cls, dtype] = GetParam();
  RunOptions options{
      .model = model.config(), .tp = cls.tp, .dp = cls.dp, .dtype = dtype, .sequence_parallel = cls.sequence_parallel};
  options.product_options.tp_chunks = model.turn == 1 ? 2 : nn::kAutomaticChunks;
  const RunResult expected = run(options);
  EXPECT_TRUE(std::isfinite(expected.losses.back()));
  EXPECT_LT(expected.losses.back(), expected.losses.front());
  // The tests of the three models together cover every pair of a degree and a recompute policy. They exchange rows of
  // the embedding at every degree.
  constexpr nn::Recompute policies[] = {nn::Recompute::none, nn::Recompute::selective, nn::Recompute::full};
  constexpr int degrees[] = {1, 2, 3, 6};
  const int turn = model.turn, turn_of_policies = turn + (dtype == quant::DType::bf16 ? 1 : 0);
  for (int i = 0; i < 4; ++i) {
    options.gtp = degrees[i];
    options.recompute = policies[(i + turn_of_policies) % 3];
    options.embedding = i == 1 + turn ? shard::Lookup::rows : shard::Lookup::gather;
    if (options.gtp == 1 && options.recompute == nn::Recompute::none) continue;  // the options of `expected`
    expect_same_bits(expected, run(options),
                     fmt::format("gtp {} recompute {}{}", options.gtp, name_of(options.recompute),
                                 options.embedding == shard::Lookup::rows ? ", rows of the embedding" : ""));
  }
}

INSTANTIATE_TEST_SUITE_P(Classes, SameBits,
                         ::testing::Combine(::testing::ValuesIn(kModels),
                                            ::testing::Values(Class{"tp1", 1, 1, false}, Class{"tp2sp", 2, 1, true},
                                                              Class{"tp2", 2, 1, false}, Class{"dp2", 1, 2, false}),
                                            ::testing::Values(quant::DType::fp32, quant::DType::bf16)),
                         [](const auto& info) {
                           return fmt::format("{}_{}_{}", std::get<0>(info.param).name, std::get<1>(info.param).name,
                                              name_of(std::get<2>(info.param)));
                         });

TEST(Trainer, GtpDegreesThatLeaveRanksWithoutRowsGiveTheSameBits) {
  RunOptions options{.model = odd_model(), .blocks = 8, .steps = 2};
  options.model.tie_word_embeddings = true;
  const RunResult expected = run(options);
  options.gtp = 8;
  expect_same_bits(expected, run(options), "gtp 8, tied");
}

TEST(Trainer, DocumentsInsideSequencesGiveTheSameBits) {
  RunOptions options{.model = odd_model(), .blocks = 4, .steps = 2, .documents = true};
  const RunResult expected = run(options);
  RunOptions plain = options;
  plain.documents = false;
  EXPECT_NE(expected.losses, run(plain).losses);
  options.gtp = 2;
  options.recompute = nn::Recompute::full;
  expect_same_bits(expected, run(options), "gtp 2");
}

TEST(Trainer, AStepWithoutTargetsHasNoLossAndNoGradient) {
  const RunResult result = run({.model = odd_model(), .gtp = 2, .blocks = 4, .steps = 2, .masked = true});
  ASSERT_EQ(result.losses.size(), 2u);
  for (const double loss : result.losses) EXPECT_TRUE(std::isnan(loss));
  EXPECT_EQ(result.norms, std::vector<double>(2, 0.0));
}

// The blocks of a model may run in several ranges, some of them empty.
TEST(Trainer, RangesOfBlocksChangeNoBit) {
  models::DecoderConfig deep = testing::sparse_model();  // its routers have a loss
  deep.num_layers = 4;
  deep.experts->sparse = {false, true, true, false};
  for (const nn::Recompute recompute : {nn::Recompute::none, nn::Recompute::selective, nn::Recompute::full}) {
    RunOptions options{.model = deep,
                       .tp = 2,
                       .gtp = 2,
                       .experts = nn::ExpertDegrees{.etp = 2, .egtp = 2},
                       .sequence_parallel = true,
                       .recompute = recompute,
                       .blocks = 4,
                       .steps = 2};
    options.dropout.hidden = 0.25;
    const RunResult expected = run(options);
    for (const std::vector<std::int64_t>& ends : {std::vector<std::int64_t>{2}, {1, 3}, {0, 4}, {1, 1, 2}}) {
      options.block_ends = ends;
      EXPECT_EQ(run(options), expected) << fmt::format("ranges that end at {}", fmt::join(ends, ", "));
    }
  }
}

TEST(Trainer, RandomDelaysChangeNoBit) {
  RunOptions options{.model = odd_model(), .tp = 2, .gtp = 2, .sequence_parallel = true, .blocks = 4, .steps = 2};
  const RunResult expected = run(options);
  options.inject = [](int rank, const std::string& group, const std::string&, std::int64_t sequence) {
    const auto mixed =
        static_cast<std::uint64_t>(rank * 7919 + sequence * 104729 + static_cast<std::int64_t>(group.size()));
    std::this_thread::sleep_for(std::chrono::microseconds(mixed * 2654435761u % 400));
  };
  expect_same_bits(expected, run(options), "with delays");
}

// docs/numerics.md: a row-parallel product that is sharded over tp sums in another order. In fp64, after 20 AdamW
// steps, loss and norm are within 1e-9 relative, and each tensor within 1e-9 of its largest element.
class Fp64Bounds : public ::testing::TestWithParam<NamedModel> {};

TEST_P(Fp64Bounds, HoldOverTpDegrees) {
  for (bool tied : {false, true}) {
    RunOptions options{.model = GetParam().config(), .dtype = quant::DType::fp64, .blocks = 4, .steps = 20};
    options.model.tie_word_embeddings = tied;
    const RunResult expected = run(options);
    for (const bool sequence : {false, true}) {
      // Each model has every degree and every choice of the two options; another pair of them than the other models.
      const int tp = std::array{2, 3, 4, 7}.at(
          static_cast<std::size_t>(((tied ? 2 : 0) + (sequence ? 1 : 0) + GetParam().turn) % 4));
      options.tp = tp;
      options.gtp = tp == 3 ? 2 : 1;
      options.sequence_parallel = sequence;
      options.product_options.tp_chunks = tp - 1;
      testing::expect_within_fp64_bounds(expected, run(options),
                                         std::string(tied ? "tied" : "untied") + " tp " + std::to_string(tp) +
                                             (options.sequence_parallel ? " sequence" : ""));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Fp64Bounds, ::testing::ValuesIn(kModels),
                         [](const auto& info) { return info.param.name; });

// fp32: the gradients of one step within 1e-4 of the largest element (depth of the sums times half an ulp, with room).
TEST(Trainer, TpDegreesAgreeInOneStepOfFp32) {
  RunOptions options{.model = odd_model(), .blocks = 4, .steps = 1};
  const RunResult expected = run(options);
  for (int tp : {2, 3}) {
    options.tp = tp;
    options.sequence_parallel = true;
    const RunResult actual = run(options);
    for (const auto& [name, values] : expected.tensors) {
      if (!name.starts_with("main_grad/")) continue;
      EXPECT_LE(largest_difference(values, actual.tensors.at(name)), 1e-4 * largest(values))
          << "tp " << tp << " " << name;
    }
  }
}

}  // namespace
}  // namespace tessera::train
