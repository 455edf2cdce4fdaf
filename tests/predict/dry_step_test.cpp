// Compares dry steps with the steps that a runtime records, event by event on every rank.
#include "tessera/predict/dry_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "tessera/schedule/check/pieces.h"
#include "tests/predict/recorded_steps.h"

namespace tessera::predict {
namespace {

// Returns the collectives of a step over two tp ranks that are waited for later than at their own event.
std::vector<std::string> waited_late(bool sequence_parallel) {
  const Case it{.config = odd_model(false), .tp = 2, .sequence_parallel = sequence_parallel};
  const DryStep dry = dry_step(options_of(it, 0));
  EXPECT_EQ(dry.waits.size(), dry.microbatch.size());
  std::vector<std::string> late;
  for (std::size_t i = 0; i < dry.waits.size(); ++i) {
    const auto last = static_cast<std::size_t>(dry.waits[i]);
    EXPECT_GE(last, i);
    EXPECT_LT(last, dry.waits.size());
    if (last > i) late.push_back(std::string(name_of(dry.microbatch[i].pass)) + " " + dry.microbatch[i].op);
  }
  return late;
}

// The gradient of the weight is computed while tp reduces the gradient of the input. An input is gathered while the
// gradient of the input is computed.
TEST(DryStep, ProgramCollectivesAreWaitedForAfterIndependentCompute) {
  EXPECT_THAT(waited_late(false), ::testing::Contains("backward all_reduce sum"));
  EXPECT_THAT(waited_late(true), ::testing::IsSupersetOf({"backward reduce_scatter", "backward all_gather"}));
}

class DrySteps : public ::testing::TestWithParam<std::tuple<nn::Recompute, bool, int, bool>> {
 protected:
  static Case base() {
    const auto [recompute, tied, tp, sequence_parallel] = GetParam();
    return {.config = odd_model(tied), .tp = tp, .recompute = recompute, .sequence_parallel = sequence_parallel};
  }
};

TEST_P(DrySteps, EqualTheRecordedSteps) {
  Case it = base();
  compare(it);
  it.microbatches = 3;
  it.dtype = quant::DType::bf16;
  compare(it);
}

TEST_P(DrySteps, EvaluationsKeepNoActivations) {
  Case it = base();
  it.kind = schedule::StepKind::evaluate;
  it.microbatches = 2;
  compare(it);
}

INSTANTIATE_TEST_SUITE_P(
    Models, DrySteps,
    ::testing::Combine(::testing::Values(nn::Recompute::none, nn::Recompute::selective, nn::Recompute::full),
                       ::testing::Bool(), ::testing::Values(1, 2, 3), ::testing::Bool()),
    [](const auto& info) {
      return std::string(name_of(std::get<0>(info.param))) + (std::get<1>(info.param) ? "_tied" : "_untied") + "_tp" +
             std::to_string(std::get<2>(info.param)) + (std::get<3>(info.param) ? "_sequence" : "");
    });

// Biases of q, k and v; norms of heads, of which a tp rank may have none.
TEST(DryStepArchitectures, EqualTheRecordedSteps) {
  for (const bool has_norms : {false, true})
    for (const nn::Recompute recompute : {nn::Recompute::none, nn::Recompute::selective, nn::Recompute::full})
      for (const auto& [tp, gtp, sequence_parallel] : {std::tuple{1, 2, false}, {3, 1, false}, {3, 1, true}})
        for (const quant::Format product : {quant::Format::bf16, quant::Format::fp8}) {
          Case it{.config = odd_model(has_norms),
                  .tp = tp,
                  .gtp = gtp,
                  .microbatches = 3,
                  .dtype = quant::DType::bf16,
                  .product = product,
                  .recompute = recompute,
                  .sequence_parallel = sequence_parallel};
          it.config.has_qkv_bias = !has_norms;
          it.config.has_head_norms = has_norms;
          compare(it);
          it.kind = schedule::StepKind::evaluate;
          compare(it);
        }
}

TEST(DryStepRows, EqualTheRecordedSteps) {
  for (const nn::Recompute recompute : {nn::Recompute::none, nn::Recompute::full})
    for (const int tp : {1, 3})
      for (const bool sequence_parallel : {false, true})
        for (const schedule::StepKind kind : {schedule::StepKind::train, schedule::StepKind::evaluate})
          compare({.config = odd_model(false),
                   .tp = tp,
                   .gtp = 2,
                   .microbatches = 2,
                   .dtype = quant::DType::bf16,
                   .lookup = shard::Lookup::rows,
                   .recompute = recompute,
                   .sequence_parallel = sequence_parallel,
                   .kind = kind});
}

// Replicas with equal numbers of storage ranks, with 3 and 2, and with 1 and 3. With 1 and 3, rows travel in both
// replicas, although one rank has all rows.
TEST(DryStepReplicas, EqualTheRecordedSteps) {
  struct Cut {
    int tp, gtp;
    std::vector<int> dead;
  };
  for (const auto& [tp, gtp, dead] : {Cut{1, 2, {}}, {1, 3, {4}}, {1, 3, {0, 2}}, {2, 3, {0, 1, 4, 5}}})
    for (const shard::Lookup lookup : {shard::Lookup::gather, shard::Lookup::rows})
      compare({.config = odd_model(false),
               .tp = tp,
               .gtp = gtp,
               .dp = 2,
               .microbatches = 2,
               .lookup = lookup,
               .sequence_parallel = tp > 1,
               .dead = dead});
}

// Some places of tp groups have no rank. Compares the events, flops and bytes of every rank.
struct MissingPlaces {
  int tp, gtp, dp;
  std::vector<int> dead;
};
const MissingPlaces kMissing[] = {{2, 1, 2, {1}}, {3, 2, 1, {1, 3, 4}}, {2, 2, 1, {3}}, {3, 2, 2, {0, 1, 4, 11}}};

TEST(DryStepAdoption, EqualsTheRecordedSteps) {
  for (const auto& [tp, gtp, dp, dead] : kMissing)
    for (const bool sequence_parallel : {false, true})
      for (const schedule::StepKind kind : {schedule::StepKind::train, schedule::StepKind::evaluate})
        compare({.config = odd_model(dp == 2),
                 .tp = tp,
                 .gtp = gtp,
                 .dp = dp,
                 .microbatches = 2,
                 .dtype = quant::DType::bf16,
                 .product = sequence_parallel ? quant::Format::fp8 : quant::Format::bf16,
                 .lookup = shard::Lookup::automatic,
                 .recompute = sequence_parallel ? nn::Recompute::full : nn::Recompute::none,
                 .sequence_parallel = sequence_parallel,
                 .kind = kind,
                 .dead = dead});
}

// The nominal tp decides which events a step has: a group of one rank and a full group have the same.
TEST(DryStepAdoption, HasTheEventsOfFullGroups) {
  for (const auto& [tp, gtp, dp, dead] : kMissing)
    for (const bool sequence_parallel : {false, true}) {
      Case it{.config = odd_model(false), .tp = tp, .gtp = gtp, .dp = dp, .sequence_parallel = sequence_parallel};
      const schedule::Trace full = dry_step(options_of(it, 0)).trace(2);
      it.dead = dead;
      for (int rank = 0; rank < tp * gtp * dp - static_cast<int>(dead.size()); ++rank) {
        const schedule::Trace part = dry_step(options_of(it, rank)).trace(2);
        ASSERT_EQ(part.size(), full.size());
        for (std::size_t i = 0; i < full.size(); ++i)
          EXPECT_TRUE(is_same(part[i], full[i])) << to_string(part[i]) << " " << to_string(full[i]);
      }
    }
}

TEST(DryStepParts, WithUnevenRanksEqualTheRecordedSteps) {
  const models::TpParts parts{.heads = {{{0, 1}, {9, 10}}, {}, {{1, 9}}},
                              .ffn = {{}, {{6, 7}, {0, 2}}, {{2, 6}}},
                              .vocabulary = {{{0, 3}, {18, 19}}, {{3, 18}}, {}}};
  for (const nn::Recompute recompute : {nn::Recompute::none, nn::Recompute::full})
    for (const bool sequence_parallel : {false, true})
      compare({.config = odd_model(true),
               .tp = 3,
               .parts = parts,
               .recompute = recompute,
               .sequence_parallel = sequence_parallel,
               .split = {{0, 3, 1}}});
}

// Formats with one scale per matrix and formats with tiles. Scales that tp ranks share need messages.
TEST(DryStepProducts, KeepTheOperandsOfBackward) {
  for (const quant::Format format :
       {quant::Format::fp8, quant::Format::fp8_block, quant::Format::mxfp8, quant::Format::nvfp4})
    for (const int tp : {1, 2})
      for (const bool sequence_parallel : {false, true})
        for (const nn::Recompute recompute : {nn::Recompute::none, nn::Recompute::selective, nn::Recompute::full})
          compare({.config = odd_model(false),
                   .tp = tp,
                   .dtype = quant::DType::bf16,
                   .product = format,
                   .recompute = recompute,
                   .sequence_parallel = sequence_parallel});
}

// A run's first step takes its scales from the matrices themselves; that adds no event to its trace.
TEST(DryStepProducts, WithDelayedScalesAndCodesOverTpEqualTheRecordedSteps) {
  for (const nn::Fp8Scaling scaling : {nn::Fp8Scaling::delayed, nn::Fp8Scaling::current})
    for (const quant::Format tp_wire : {quant::Format::bf16, quant::Format::fp8})
      for (const nn::Recompute recompute : {nn::Recompute::none, nn::Recompute::selective, nn::Recompute::full})
        for (const schedule::StepKind kind : {schedule::StepKind::train, schedule::StepKind::evaluate})
          compare({.config = odd_model(false),
                   .tp = 3,
                   .microbatches = 3,
                   .dtype = quant::DType::bf16,
                   .product = quant::Format::fp8,
                   .scaling = scaling,
                   .tp_wire = tp_wire,
                   .recompute = recompute,
                   .sequence_parallel = true,
                   .kind = kind});
}

// The 14 tokens of a microbatch fill whole tiles on no rank. With other shares, each rank's tokens begin at a tile.
TEST(DryStepProducts, WithCodesInTilesOverTpEqualTheRecordedSteps) {
  for (const quant::Format format : {quant::Format::fp8_block, quant::Format::mxfp8, quant::Format::nvfp4})
    for (const nn::TokenSplit& split : {nn::TokenSplit{}, nn::TokenSplit{.weights = {0, 0, 1}}})
      for (const bool overlap : {false, true})
        compare({.config = odd_model(false),
                 .tp = 3,
                 .gtp = 2,
                 .microbatches = 2,
                 .dtype = quant::DType::bf16,
                 .product = format,
                 .tp_wire = format,
                 .chunks = 2,
                 .overlap = overlap,
                 .recompute = overlap ? nn::Recompute::selective : nn::Recompute::none,
                 .sequence_parallel = true,
                 .split = split});
}

TEST(DryStepPieces, EqualTheRecordedSteps) {
  for (const nn::Recompute recompute : {nn::Recompute::none, nn::Recompute::selective, nn::Recompute::full})
    for (const auto& [product, tp_wire] : {std::pair{quant::Format::bf16, quant::Format::bf16},
                                           {quant::Format::fp8, quant::Format::bf16},
                                           {quant::Format::fp8, quant::Format::fp8}})
      compare({.config = odd_model(false),
               .tp = 3,
               .gtp = product == quant::Format::bf16 ? 2 : 1,
               .microbatches = 2,
               .dtype = quant::DType::bf16,
               .product = product,
               .tp_wire = tp_wire,
               .chunks = 2,
               .overlap = true,
               .recompute = recompute,
               .sequence_parallel = true});
}

bool is_refused(const schedule::Trace& trace) {
  const std::vector<schedule::ParameterSize> sizes;
  const schedule::Schedule schedule;
  schedule::CheckFaults faults(trace, sizes, schedule);
  schedule::check_pieces(trace, faults);
  return !faults.none();
}

// Returns the trace in which event `from` is moved directly behind event `to`, or before it if `to` is earlier.
schedule::Trace moved(schedule::Trace trace, std::size_t from, std::size_t to) {
  const schedule::Event event = trace[from];
  trace.erase(trace.begin() + static_cast<std::ptrdiff_t>(from));
  trace.insert(trace.begin() + static_cast<std::ptrdiff_t>(to), event);
  return trace;
}

// Damages each piece and each sum of a model's step.
TEST(DryStepPieces, ThatAreDamagedAreRefused) {
  using schedule::EventKind, schedule::Event;
  const Case it{
      .config = odd_model(false), .tp = 3, .dtype = quant::DType::bf16, .overlap = true, .sequence_parallel = true};
  const schedule::Trace all = dry_step(options_of(it, 0)).microbatch;
  EXPECT_FALSE(is_refused(all));
  const auto next = [&](std::size_t from, EventKind kind) {
    const auto is_it = [&](const Event& event) {
      return event.kind == kind && event.parameter == all[from].parameter &&
             (kind == EventKind::produce || event.pass == all[from].pass);
    };
    return static_cast<std::size_t>(std::find_if(all.begin() + static_cast<std::ptrdiff_t>(from), all.end(), is_it) -
                                    all.begin());
  };
  std::size_t consumed = 0;
  int begins = 0, needs = 0, sums = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(to_string(all[i]));
    const bool is_scatter = all[i].op.starts_with(schedule::kScatter);
    if (all[i].kind == EventKind::consume) consumed = i;
    if (all[i].kind == EventKind::comm && is_scatter) {
      ++begins;
      EXPECT_TRUE(is_refused(moved(all, i, consumed)));
    }
    if (all[i].kind == EventKind::need) {
      ++needs;
      EXPECT_GE(all[i].parameter, 0);
      EXPECT_GE(all[i].offset, 0);
      schedule::Trace without = all;
      without.erase(without.begin() + static_cast<std::ptrdiff_t>(i));
      EXPECT_TRUE(is_refused(without));
      const EventKind reader = is_scatter                                      ? EventKind::sum
                               : all[i].op.starts_with(schedule::kWgradGather) ? EventKind::produce
                                                                               : EventKind::release;
      ASSERT_LT(next(i, reader), all.size());
      EXPECT_TRUE(is_refused(moved(all, i, next(i, reader))));
    }
    if (all[i].kind == EventKind::sum) {
      ++sums;
      schedule::Trace reordered = all;
      EXPECT_EQ(reordered[i].op, "ranks 0 1 2");
      reordered[i].op = "ranks 2 1 0";
      EXPECT_TRUE(is_refused(reordered));
    }
  }
  // By layer: 2 sums in each pass. The embedding and the output layer have a sum each.
  EXPECT_EQ(sums, 4 * 2 + 2);
  EXPECT_EQ(begins, 2 * sums);
  EXPECT_EQ(needs, 2 * (10 * 2 + 5));
}

// A product of n chunks is n products.
TEST(DryStepPieces, ReportEachChunkOfAProduct) {
  const auto products = [](std::int64_t chunks) {
    const Case it{.config = odd_model(false), .tp = 2, .chunks = chunks, .sequence_parallel = true};
    std::int64_t count = 0;
    for (const std::vector<ops::Work>& works : dry_step(options_of(it, 0)).work)
      for (const ops::Work& work : works)
        count += work.kind == ops::WorkKind::product && std::string(work.name) != "wgrad" ? 1 : 0;
    return count;
  };
  EXPECT_EQ(products(2), 2 * products(1));
  EXPECT_EQ(products(nn::kAutomaticChunks), products(1));
}

// The norms of the blocks, in forward and backward, and the norm after the blocks read the parts of scattered sums. The
// embeddings and the gradient of the output layer's input need a sum of its own. With full recomputation, so does the
// result of each block, in forward and in the recomputed forward.
TEST(DryStepPieces, NormsReadTheParts) {
  const auto sums = [](nn::Recompute recompute, bool overlap) {
    const Case it{
        .config = odd_model(false), .tp = 3, .overlap = overlap, .recompute = recompute, .sequence_parallel = true};
    std::int64_t count = 0;
    for (const std::vector<ops::Work>& works : dry_step(options_of(it, 0)).work)
      for (const ops::Work& work : works) count += work.name == std::string_view("sum of parts") ? 1 : 0;
    return count;
  };
  EXPECT_EQ(sums(nn::Recompute::none, true), 2);
  EXPECT_EQ(sums(nn::Recompute::selective, true), 2);
  EXPECT_EQ(sums(nn::Recompute::full, true), 2 + 2 * odd_model(false).num_layers);
  EXPECT_EQ(sums(nn::Recompute::none, false), 0);
}

TEST(DryStepCopies, AreReadByBackwardPasses) {
  models::DecoderConfig even = odd_model(false);
  even.hidden_size = 12;
  const shard::FormatPolicy backward{.rules = {{"layers.*", quant::Format::mxfp8}}};
  for (const int gtp : {1, 2}) compare({.config = even, .gtp = gtp, .dtype = quant::DType::bf16, .backward = backward});
}

// The step has 2 x 7 tokens, hidden size 11 and fp64 values. For each token, a block keeps the result and the input of
// its norm (11 + 11), its statistics (1), q, k, v and softmax (10 + 5 + 5 heads of 4, and 10), and the result of
// attention (40). The second norm keeps 23 values like the first one. SwiGLU keeps its input and its result (14 + 7).
TEST(DryStepStashes, CountTheActivationsThatABlockKeeps) {
  const auto stashed = [&](nn::Recompute recompute) {
    // fp64 values for each token, kept by the first block and by the layers after the blocks.
    std::vector<std::int64_t> values;
    const Case it{.config = odd_model(false), .dtype = quant::DType::fp64, .recompute = recompute};
    for (const schedule::Event& event : dry_step(options_of(it, 0)).microbatch)
      if (event.kind == schedule::EventKind::stash) values.push_back(event.bytes / 8 / 14);
    return values;
  };
  EXPECT_EQ(stashed(nn::Recompute::none),
            (std::vector<std::int64_t>{23, 90, 40, 23, 21, 23, 90, 40, 23, 21, 12, 19 + 11}));
  EXPECT_EQ(stashed(nn::Recompute::selective),
            (std::vector<std::int64_t>{12, 90, 40, 12, 14, 12, 90, 40, 12, 14, 12, 30}));
  // The inputs of the blocks (h; h and residual). In the backward pass, each block is recomputed, beginning with the
  // last block.
  EXPECT_EQ(stashed(nn::Recompute::full),
            (std::vector<std::int64_t>{11, 22, 12, 30, 23, 90, 40, 23, 21, 23, 90, 40, 23, 21}));
}

TEST(DryStepPublishEvents, FollowTheOrderOfFirstUse) {
  for (const int gtp : {1, 2}) {
    const Case it{
        .config = odd_model(gtp == 1), .gtp = gtp, .lookup = gtp == 2 ? shard::Lookup::rows : shard::Lookup::gather};
    std::vector<schedule::ParameterId> published;
    for (const schedule::Event& event : dry_step(options_of(it, 0)).optimizer) {
      EXPECT_EQ(event.kind, schedule::EventKind::publish);
      EXPECT_EQ(event.microbatch, -1);
      published.push_back(event.parameter);
    }
    // Weights: embedding, 2 x 6 of the blocks, norm, and output unless it is tied.
    std::vector<schedule::ParameterId> all(gtp == 1 ? 14 : 15);
    for (std::size_t id = 0; id < all.size(); ++id) all[id] = static_cast<schedule::ParameterId>(id);
    EXPECT_EQ(published, all);
  }
}

// The products of one rank, computed by hand: 2 operations x tokens x rows x columns of each weight, once in the
// forward pass and twice in the backward pass.
TEST(DryStepWork, CountsEachProductOnce) {
  const Case it{.config = odd_model(false)};
  const DryStep dry = dry_step(options_of(it, 0));
  double flops = 0;
  int products = 0;
  for (const std::vector<ops::Work>& works : dry.work)
    for (const ops::Work& work : works)
      if (work.kind == ops::WorkKind::product) flops += work.flops, ++products;
  const double block = (40 + 2 * 20) * 11 + 11 * 40 + 2 * 7 * 11 + 11 * 7;
  EXPECT_EQ(products, 3 * (2 * 4 + 1));
  EXPECT_EQ(flops, 3 * 2 * 14 * (2 * block + 19 * 11));
}

TEST(DryStepSizes, NeedNoMemoryForAHugeModel) {
  Case it{.config = odd_model(false), .tp = 1, .dtype = quant::DType::bf16};
  it.config.vocab_size = 1'000'000;
  it.config.hidden_size = 40 * 4096;
  it.config.intermediate_size = 1'000'000;
  it.config.num_heads = 4096, it.config.num_kv_heads = 4096, it.config.head_dim = 40;
  const DryStep dry = dry_step(options_of(it, 0));
  EXPECT_GT(dry.flops.front(), std::int64_t{1} << 40);
}

}  // namespace
}  // namespace tessera::predict
