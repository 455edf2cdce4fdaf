// Tests tp ranks whose parts are uneven, shuffled and in several ranges: whole runs give the numbers of even parts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <mutex>

#include "tessera/base/error.h"
#include "tessera/checkpoint/reader.h"
#include "tessera/comm/local/world.h"
#include "tessera/models/decoder/decoder_layouts.h"
#include "tessera/train/trainer_checkpoint.h"
#include "tests/train/compare_runs.h"
#include "tests/train/training.h"

namespace tessera::train {
namespace {

using ::testing::HasSubstr;
using testing::odd_model;
using testing::run;
using testing::RunOptions;
using testing::RunResult;
using ::testing::ThrowsMessage;

// Parts of odd_model: 25 query heads that read 5 key/value heads, 37 feed-forward columns, 67 vocabulary rows. With
// three ranks, one rank has no heads, one no columns and one no rows. Key/value heads are read in descending order.
models::TpParts shuffled_parts(int tp) {
  if (tp == 2)
    return {.heads = {{{0, 2}, {5, 6}, {20, 25}}, {{6, 20}, {2, 5}}},
            .ffn = {{{30, 37}, {0, 3}}, {{3, 30}}},
            .vocabulary = {{{60, 67}, {0, 10}, {20, 21}}, {{10, 20}, {21, 60}}}};
  return {.heads = {{{3, 8}, {1, 2}}, {}, {{8, 25}, {2, 3}, {0, 1}}},
          .ffn = {{}, {{36, 37}, {0, 5}, {9, 10}}, {{5, 9}, {10, 36}}},
          .vocabulary = {{{40, 67}, {0, 1}}, {{1, 40}}, {}}};
}

nn::TokenSplit uneven_tokens(int tp) {
  return tp == 2 ? nn::TokenSplit{{1, 3}} : nn::TokenSplit{{2, 0, 1}};
}

class ShuffledParts : public ::testing::TestWithParam<int> {};

TEST_P(ShuffledParts, GiveTheNumbersOfEvenPartsInFp64) {
  for (const bool tied : {false, true}) {
    RunOptions options{
        .model = tied ? testing::normed_model() : odd_model(), .dtype = quant::DType::fp64, .blocks = 4, .steps = 5};
    options.model.tie_word_embeddings = options.model.has_qkv_bias = tied;
    const RunResult expected = run(options);
    options.tp = GetParam();
    options.parts = shuffled_parts(options.tp);
    for (const bool sequence_parallel : {false, true})
      for (const int gtp : {1, 2}) {
        options.sequence_parallel = sequence_parallel;
        options.split = sequence_parallel ? uneven_tokens(options.tp) : nn::TokenSplit{};
        options.gtp = gtp;
        testing::expect_within_fp64_bounds(expected, run(options),
                                           std::string(tied ? "tied" : "untied") +
                                               (sequence_parallel ? " sequence" : "") + " gtp " + std::to_string(gtp));
      }
  }
}

TEST_P(ShuffledParts, GiveTheSameBitsOverGtpDegrees) {
  for (const quant::DType dtype : {quant::DType::fp32, quant::DType::bf16}) {
    const int tp = GetParam();
    RunOptions options{.model = odd_model(),
                       .tp = tp,
                       .dtype = dtype,
                       .sequence_parallel = true,
                       .split = uneven_tokens(tp),
                       .parts = shuffled_parts(tp),
                       .blocks = 6};
    const RunResult expected = run(options);
    for (const double norm : expected.norms) EXPECT_TRUE(std::isfinite(norm) && norm > 0);
    for (const int gtp : {2, 3, 6}) {
      options.gtp = gtp;
      options.recompute = gtp == 2 ? nn::Recompute::selective : nn::Recompute::full;
      EXPECT_EQ(run(options), expected) << name_of(dtype) << " gtp " << gtp;
    }
  }
}

// The optimizer's state is also sharded over dp, and weights travel and are multiplied in number formats: one with a
// scale per matrix, one with a scale per tile.
TEST_P(ShuffledParts, GiveTheSameBitsWithAShardedStateAndFormatsOnTheWire) {
  const int tp = GetParam();
  RunOptions options{.model = odd_model(),
                     .tp = tp,
                     .dp = 2,
                     .dtype = quant::DType::bf16,
                     .sequence_parallel = true,
                     .split = uneven_tokens(tp),
                     .parts = shuffled_parts(tp),
                     .blocks = 4,
                     .steps = 2};
  using enum quant::Format;
  for (const auto& [wire, products] : {std::pair{bf16, bf16}, {fp8, bf16}, {mxfp8, bf16}, {fp8, fp8}}) {
    options.wire = wire;
    options.products = products;
    options.gtp = 1;
    options.zero = false;
    const RunResult expected = run(options);
    options.gtp = 2;
    for (const bool zero : {false, true}) {
      options.zero = zero;
      EXPECT_EQ(run(options), expected) << name_of(wire) << " products " << name_of(products) << " zero " << zero;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(TensorParallel, ShuffledParts, ::testing::Values(2, 3),
                         [](const auto& info) { return "tp" + std::to_string(info.param); });

TEST(EvenParts, AreTheDefaultBitForBit) {
  RunOptions options{.model = odd_model(), .tp = 3, .sequence_parallel = true, .blocks = 2, .steps = 2};
  const RunResult expected = run(options);
  options.parts = models::even_parts(options.model, 3);
  options.split.weights = {4, 4, 4};
  EXPECT_EQ(run(options), expected);
}

// Each rank computes with as many elements as its parts contain. Losses cannot show this: on some machines the sums of
// such a small model round equally for every sharding.
TEST(UnevenParts, DetermineTheElementsOfEachRank) {
  RunOptions options{.model = odd_model(), .tp = 2, .blocks = 2, .steps = 1};
  options.parts = shuffled_parts(2);
  std::mutex mutex;
  std::map<std::string, std::vector<std::int64_t>> elements;  // key: name; index: rank
  options.at_end = [&](Trainer& trainer) {
    const std::lock_guard lock(mutex);
    for (schedule::ParameterId id = 0; id < trainer.runtime().parameters().size(); ++id) {
      const shard::ShardedParameter& parameter = trainer.runtime().parameter(id);
      auto& of_ranks = elements[parameter.spec.name];
      of_ranks.resize(2);
      of_ranks[trainer.parallel().rank] = parameter.local_compute.size;
    }
  };
  run(options);
  const std::int64_t hidden = options.model.hidden_size;
  using Elements = std::vector<std::int64_t>;
  EXPECT_EQ(elements.at("output.weight"), (Elements{18 * hidden, 49 * hidden}));
  for (const std::string layer : {"layers.0.", "layers.1."}) {
    EXPECT_EQ(elements.at(layer + "attention.output.weight"), (Elements{8 * 2 * hidden, 17 * 2 * hidden}));
    EXPECT_EQ(elements.at(layer + "mlp.down.weight"), (Elements{10 * hidden, 27 * hidden}));
  }
}

// Adjacent ranges of columns are packed to travel, together with neighbours that need no packing.
TEST(UnevenParts, ColumnsTravelWithTheirNeighbours) {
  RunOptions options{.model = odd_model(), .tp = 2, .blocks = 6, .steps = 2};
  options.model.vocab_size = 670;  // units that travel together are small compared with the largest weight
  options.parts = models::even_parts(options.model, 2);
  options.parts->ffn = {{{10, 20}}, {{0, 10}, {20, 37}}};
  const RunResult expected = run(options);
  options.coalesce_bytes = 1 << 20;
  for (const int gtp : {2, 3}) {
    options.gtp = gtp;
    EXPECT_EQ(run(options), expected) << "gtp " << gtp;
  }
}

TEST(UnevenParts, VocabularyRangesMakeTheEmbeddingTravelWhole) {
  RunOptions options{.model = odd_model(), .tp = 2, .gtp = 2, .blocks = 2, .steps = 2};
  options.parts = shuffled_parts(2);
  const RunResult expected = run(options);
  options.embedding = shard::Lookup::automatic;
  EXPECT_EQ(run(options), expected);
  options.embedding = shard::Lookup::rows;
  EXPECT_THAT([&] { run(options); },
              ThrowsMessage<Error>(
                  HasSubstr("rows travel by index only where each tp rank holds one range of the vocabulary")));
  // With one range per rank, of unequal lengths and in another order, the table may travel by rows.
  options.parts->vocabulary = {{{10, 67}}, {{0, 10}}};
  const RunResult by_rows = run(options);
  options.embedding = shard::Lookup::gather;
  EXPECT_EQ(run(options), by_rows);
}

TEST(UnevenParts, RefuseAUnitOnNoRankOrOnTwo) {
  RunOptions options{.model = odd_model(), .tp = 2, .blocks = 2, .steps = 1};
  const auto refuses = [&](const char* refusal, const std::function<void(models::TpParts&)>& change) {
    options.parts = shuffled_parts(2);
    change(*options.parts);
    EXPECT_THAT([&] { run(options); }, ThrowsMessage<Error>(HasSubstr(refusal)));
  };
  refuses("query heads: each of 25 must be on one tp rank: layout: rows [1, 2)",
          [](models::TpParts& parts) { parts.heads[0][0].end = 1; });
  refuses("query heads: each of 25 must be on one tp rank: layout: rows [6, 7)", [](models::TpParts& parts) {
    parts.heads[0].push_back({6, 7});
  });
  refuses("feed-forward columns: each of 37 must be on one tp rank: layout: rows [30, 31)",
          [](models::TpParts& parts) { parts.ffn[1][0].end = 31; });
  refuses("feed-forward columns: got parts of 3 tp ranks, expected 2",
          [](models::TpParts& parts) { parts.ffn.emplace_back(); });
  refuses("vocabulary rows: each of 67 must be on one tp rank: layout: rows [20, 21)",
          [](models::TpParts& parts) { parts.vocabulary[0].pop_back(); });
  refuses("vocabulary rows: each of 67 must be on one tp rank: rows_by_rank: rank 1 rows [67, 68)",
          [](models::TpParts& parts) {
            parts.vocabulary[1].push_back({67, 68});
          });
  refuses("the model's parts are for 3 tp ranks, expected 2",
          [](models::TpParts& parts) { parts = shuffled_parts(3); });
}

// A checkpoint stores only logical rows and columns: even parts read the checkpoint of uneven parts.
TEST(UnevenParts, ResumeAsEvenParts) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "tessera_uneven_parts";
  std::filesystem::remove_all(folder);
  RunOptions uneven{.model = odd_model(), .tp = 3, .gtp = 2, .sequence_parallel = true, .blocks = 4, .steps = 2};
  uneven.split = uneven_tokens(3);
  uneven.parts = shuffled_parts(3);
  uneven.after_step = [&](Trainer& trainer, int step) {
    if (step == 1) save_trainer(trainer, folder, 2, nlohmann::json::object());
  };
  const RunResult written = run(uneven);
  for (const int tp : {1, 2}) {
    RunOptions even{.model = odd_model(), .tp = tp, .blocks = 1, .steps = 1, .left_out = {0}};
    even.at_end = [&](Trainer& trainer) { load_trainer(trainer, checkpoint::CheckpointReader(folder)); };
    const RunResult read = run(even);
    for (const auto& [name, values] : written.tensors) {
      if (name.starts_with("main_grad/")) continue;
      EXPECT_EQ(read.tensors.at(name), values) << "tp " << tp << " " << name;
    }
    EXPECT_EQ(read.updates, written.updates);
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace tessera::train
