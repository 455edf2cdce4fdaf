// Tests that runs whose tokens are exchanged in pieces have the same bits as runs with whole transfers.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>

#include "tests/train/compare_runs.h"
#include "tests/train/training.h"

namespace tessera::train {
namespace {

using testing::expect_same_bits;
using testing::run;
using testing::RunOptions;
using testing::RunResult;

struct OverlapCase {
  int tp = 2, gtp = 1;
  std::int64_t seq_len = 7, chunks = nn::kAutomaticChunks;
  nn::Recompute recompute = nn::Recompute::none;
  quant::DType dtype = quant::DType::bf16;
  quant::Format products = quant::Format::bf16, tp_wire = quant::Format::bf16;
  std::vector<std::int64_t> weights = {};  // of the token split
  int steps = 3;
  bool drops = false, has_experts = false;
};

RunOptions options_of(const OverlapCase& it) {
  RunOptions options{.model = testing::odd_model(),
                     .tp = it.tp,
                     .gtp = it.gtp,
                     .dtype = it.dtype,
                     .sequence_parallel = true,
                     .split = {it.weights},
                     .recompute = it.recompute,
                     .blocks = 4,
                     .seq_len = it.seq_len,
                     .steps = it.steps,
                     .products = it.products};
  options.product_options.tp_wire = it.tp_wire;
  options.product_options.tp_chunks = it.chunks;
  if (it.drops) options.dropout = {.hidden = 0.2, .embedding = 0.1, .seed = 3};
  if (it.has_experts) {
    options.model = testing::balanced_model();
    options.experts = nn::ExpertDegrees{.ep = it.tp, .egtp = it.gtp};
  }
  return options;
}

// With poison, a rank that multiplies tokens before they arrive multiplies NaN.
TEST(Overlap, ChangesNoBit) {
  constexpr auto kFp8 = quant::Format::fp8, kBf16 = quant::Format::bf16;
  constexpr auto kFull = nn::Recompute::full, kSelective = nn::Recompute::selective;
  constexpr auto kNone = nn::Recompute::none;
  const OverlapCase cases[] = {
      {.tp = 2, .gtp = 2, .chunks = 2, .recompute = kFull, .dtype = quant::DType::fp32, .steps = 20},
      {.tp = 3, .gtp = 2, .seq_len = 8, .chunks = 2, .recompute = kSelective},
      {.tp = 4, .seq_len = 7, .chunks = 4},
      {.tp = 4, .seq_len = 3, .chunks = 3},
      {.tp = 2, .seq_len = 1},
      {.tp = 3, .seq_len = 2, .chunks = 3, .recompute = kFull},
      {.tp = 3, .seq_len = 7, .chunks = 3, .weights = {0, 2, 1}},
      {.tp = 2, .chunks = 2, .recompute = kNone, .products = kFp8, .tp_wire = kBf16},
      {.tp = 3, .chunks = 3, .recompute = kSelective, .products = kFp8, .tp_wire = kFp8},
      {.tp = 5, .chunks = 5, .recompute = kSelective, .drops = true},
      {.tp = 3, .gtp = 2, .recompute = kFull, .drops = true},
      {.tp = 3, .recompute = kSelective, .has_experts = true},
      {.tp = 2, .gtp = 2, .recompute = kFull, .drops = true, .has_experts = true},
  };
  for (const OverlapCase& it : cases) {
    RunOptions options = options_of(it);
    const RunResult expected = run(options);
    options.product_options.tp_overlap = true;
    options.replay = {.poison = true, .delay_seed = 5, .longest_delay = 0.0003};
    std::atomic<std::int64_t> pieces = 0, fallbacks = 0;
    options.after_step = [&](Trainer& trainer, int) {
      pieces += trainer.runtime().statistics().tp_pieces;
      fallbacks += trainer.runtime().statistics().tp_fallbacks;
    };
    const std::string name = fmt::format("tp {} gtp {} tokens {} chunks {}", it.tp, it.gtp, it.seq_len, it.chunks);
    expect_same_bits(expected, run(options), name);
    EXPECT_GT(pieces, 0) << name;
    EXPECT_EQ(fallbacks, 0) << name;
  }
}

// By layer and pass: qkv and gate_up gather, output and down scatter, and backward gathers 4 times and scatters twice.
// The embedding scatters and gathers, and the output layer gathers twice and scatters once.
TEST(Overlap, CountsThePiecesThatARankReceives) {
  RunOptions options = options_of({.tp = 3, .seq_len = 8, .steps = 1});
  options.blocks = 2;
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
}  // namespace tessera::train
