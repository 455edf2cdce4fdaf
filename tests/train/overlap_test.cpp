// Tests that runs whose tokens are exchanged in pieces have the same bits as runs with whole transfers. Most runs are a
// pairwise covering set of meshes, shapes and options.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "tests/train/compare_runs.h"
#include "tests/train/pairwise.h"
#include "tests/train/training.h"

namespace tessera::train::overlap {
namespace {

using testing::Choice;
using testing::expect_same_bits;
using testing::run;
using testing::RunOptions;
using testing::RunResult;

enum Factor { kTp, kGtp, kTokens, kChunks, kRecompute, kProducts, kSplit, kModel, kEmbedding, kDropout };
const std::vector<int> kLevels{3, 2, 5, 3, 3, 4, 2, 2, 2, 2};  // number of levels of each factor

int level(const Choice& choice, Factor factor) {
  return choice[static_cast<std::size_t>(factor)];
}

// The heads and the feed-forward sizes of both models are not multiples of the tp degrees.
RunOptions options_of(const Choice& choice) {
  const int tp = level(choice, kTp) + 2;
  const std::int64_t tokens[] = {1, 2, tp - 1, 7, 8};
  RunOptions options{.model = level(choice, kModel) == 0 ? testing::odd_model() : testing::normed_model(),
                     .tp = tp,
                     .gtp = level(choice, kGtp) + 1,
                     .dtype = level(choice, kProducts) == 0 ? quant::DType::fp32 : quant::DType::bf16,
                     .sequence_parallel = true,
                     .recompute = static_cast<nn::Recompute>(level(choice, kRecompute)),
                     .embedding = level(choice, kEmbedding) == 0 ? shard::Lookup::gather : shard::Lookup::rows,
                     .blocks = 4,
                     .seq_len = tokens[level(choice, kTokens)],
                     .steps = 2};
  if (level(choice, kSplit) == 1)
    options.split.weights = tp == 2   ? std::vector<std::int64_t>{1, 2}
                            : tp == 3 ? std::vector<std::int64_t>{0, 2, 1}
                                      : std::vector<std::int64_t>{2, 1, 0, 3};
  if (level(choice, kProducts) >= 2) options.products = quant::Format::fp8;
  if (level(choice, kProducts) == 3) options.product_options.tp_wire = quant::Format::fp8;
  const std::int64_t chunks[] = {1, 2, tp};
  options.product_options.tp_chunks = chunks[level(choice, kChunks)];
  if (level(choice, kDropout) == 1) options.dropout = {.hidden = 0.2, .embedding = 0.1};
  return options;
}

// Rows of a table are exchanged only over gtp.
bool is_valid(const Choice& choice) {
  return level(choice, kEmbedding) == 0 || level(choice, kGtp) == 1;
}

// Expects that tokens in pieces give the bits of whole transfers. With poison, a rank that multiplies tokens before
// they arrive multiplies NaN.
void expect_same_bits_in_pieces(RunOptions options, unsigned delay_seed, const std::string& name) {
  const RunResult expected = run(options);
  options.product_options.tp_overlap = true;
  options.replay = {.poison = true, .delay_seed = delay_seed, .longest_delay = 0.0003};
  std::atomic<std::int64_t> pieces = 0, fallbacks = 0;
  options.after_step = [&](Trainer& trainer, int) {
    pieces += trainer.runtime().statistics().tp_pieces;
    fallbacks += trainer.runtime().statistics().tp_fallbacks;
  };
  expect_same_bits(expected, run(options), name);
  EXPECT_GT(pieces, 0) << name;
  EXPECT_EQ(fallbacks, 0) << name;
}

// The seed is printed. TESSERA_COVER_SEED sets it; TESSERA_COVER_SETS repeats the set with further seeds.
TEST(Overlap, ChangesNoBit) {
  const unsigned first = testing::number_of_environment("TESSERA_COVER_SEED", 1),
                 sets = testing::number_of_environment("TESSERA_COVER_SETS", 1);
  for (unsigned seed = first; seed < first + sets; ++seed) {
    const std::vector<Choice> cases = testing::pairwise_set(kLevels, seed, is_valid);
    fmt::print("seed {}: {} runs cover all pairs of values\n", seed, cases.size());
    for (const Choice& choice : cases)
      expect_same_bits_in_pieces(options_of(choice), seed, fmt::format("choice {}", fmt::join(choice, " ")));
  }
}

RunOptions small_options(int tp, std::int64_t seq_len) {
  RunOptions options{
      .model = testing::odd_model(), .tp = tp, .sequence_parallel = true, .blocks = 4, .seq_len = seq_len};
  options.product_options.tp_chunks = tp;
  return options;
}

TEST(Overlap, ChangesNoBitIn20Steps) {
  RunOptions options = small_options(2, 7);
  options.gtp = 2;
  options.steps = 20;
  options.evaluated = {1, 2, 9};
  expect_same_bits_in_pieces(options, 5, "20 steps");
}

// The tokens of experts travel over other groups between the transfers in pieces.
TEST(Overlap, ChangesNoBitOfExperts) {
  for (const models::DecoderConfig& model : {testing::sparse_model(), testing::balanced_model()})
    for (const nn::ExpertDegrees& degrees : {nn::ExpertDegrees{.etp = 2}, {.ep = 2}, {.ep = 2, .egtp = 2}}) {
      RunOptions options = small_options(2, 7);
      options.model = model;
      options.gtp = degrees.egtp;
      options.experts = degrees;
      options.recompute = degrees.etp == 2 ? nn::Recompute::full : nn::Recompute::selective;
      expect_same_bits_in_pieces(options, 2,
                                 fmt::format("etp {} ep {} egtp {}", degrees.etp, degrees.ep, degrees.egtp));
    }
}

// A tp group has fewer ranks than the other groups of its replica, down to one rank without peers.
TEST(Overlap, ChangesNoBitWithDeadPlaces) {
  for (const std::vector<int>& dead : {std::vector{1}, {0, 4}, {1, 2}}) {
    RunOptions options = small_options(3, 7);
    const mesh::Grid grid{{"a", 3}, {"b", 2}, {"c", 1}};
    options.ranks = {.mesh = mesh::Mesh({grid}, mesh::live_places(grid, dead)),
                     .domains = {{.compute = {"a"}, .storage = {"b"}, .duplicates = {}, .replicas = {"c"}}}};
    expect_same_bits_in_pieces(options, 4, fmt::format("dead {}", fmt::join(dead, " ")));
  }
}

// The tensors include the gradient of each parameter.
TEST(Overlap, HasTheFp64GradientsOfOneTpRank) {
  RunOptions options = small_options(1, 7);
  options.dtype = quant::DType::fp64;
  const RunResult expected = run(options);
  EXPECT_EQ(std::ranges::count_if(expected.tensors, [](const auto& it) { return it.first.starts_with("main_grad/"); }),
            std::ranges::count_if(expected.tensors, [](const auto& it) { return it.first.starts_with("weight/"); }));
  options.product_options.tp_overlap = true;
  options.replay = {.poison = true, .delay_seed = 3, .longest_delay = 0.0003};
  for (const int tp : {2, 3, 4}) {
    options.tp = options.product_options.tp_chunks = tp;
    testing::expect_within_fp64_bounds(expected, run(options), fmt::format("tp {}", tp));
  }
}

// By layer and pass: qkv and gate_up gather, output and down scatter, and backward gathers 4 times and scatters twice.
// The embedding scatters and gathers, and the output layer gathers twice and scatters once.
TEST(Overlap, CountsThePiecesThatARankReceives) {
  RunOptions options = small_options(3, 8);
  options.blocks = 2, options.steps = 1;
  options.product_options.tp_overlap = true;
  std::atomic<std::int64_t> pieces = 0;
  options.after_step = [&](Trainer& trainer, int) {
    if (trainer.parallel().rank == 0) pieces = trainer.runtime().statistics().tp_pieces;
  };
  run(options);
  const std::int64_t layers = options.model.num_layers;
  EXPECT_EQ(pieces, 2 * (10 * layers + 5) * 2);
  options.product_options.tp_overlap = false;
  run(options);
  EXPECT_EQ(pieces, 0);
}

}  // namespace
}  // namespace tessera::train::overlap
