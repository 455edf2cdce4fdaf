// Tests runs in which places of tp groups have no rank and the other ranks adopt their parts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <filesystem>
#include <mutex>

#include "tessera/base/error.h"
#include "tessera/checkpoint/reader.h"
#include "tessera/shard/unequal/spread_units.h"
#include "tessera/train/trainer_checkpoint.h"
#include "tests/train/compare_runs.h"
#include "tests/train/training.h"

namespace tessera::train {
namespace {

using testing::expect_same_bits;
using testing::expect_within_fp64_bounds;
using ::testing::HasSubstr;
using testing::odd_model;
using testing::run;
using testing::RunOptions;
using testing::RunResult;
using ::testing::ThrowsMessage;

shard::RankLayout without(int tp, int gtp, int dp, std::vector<int> dead) {
  const mesh::Grid grid{{"a", tp}, {"b", gtp}, {"c", dp}};
  return {.mesh = mesh::Mesh({grid}, mesh::live_places(grid, std::move(dead))),
          .domains = {{.compute = {"a"}, .storage = {"b"}, .duplicates = {}, .replicas = {"c"}}}};
}

models::TpParts parts_of(const models::DecoderConfig& config, int places, const shard::Slots& slots) {
  return {.heads = shard::spread_units(config.num_heads, places, slots),
          .ffn = shard::spread_units(config.intermediate_size, places, slots),
          .vocabulary = shard::spread_units(config.vocab_size, places, slots)};
}

TEST(Adoption, GivesTheNumbersOfFullGroupsInFp64) {
  RunOptions options{.model = odd_model(), .tp = 2, .dp = 2, .dtype = quant::DType::fp64, .blocks = 4, .steps = 20};
  options.evaluated = {1, 3};
  const RunResult expected = run(options);
  for (const bool sequence_parallel : {false, true}) {
    options.sequence_parallel = sequence_parallel;
    options.ranks = without(2, 1, 2, {1});
    expect_within_fp64_bounds(expected, run(options), "tp 2, one place without a rank");
  }
}

// Two tp groups of one replica have different dead slots. The ranks of the replica are one class with one trace.
TEST(Adoption, ReplicasWithDifferentGroupsAreOneClass) {
  RunOptions options{.model = odd_model(), .dtype = quant::DType::fp64, .blocks = 4, .steps = 6};
  const RunResult expected = run(options);
  options.at_end = [](Trainer& trainer) { EXPECT_FALSE(trainer.parallel().has_classes()); };
  for (const auto& [tp, gtp, dead] :
       {std::tuple{2, 2, std::vector{3}}, {2, 2, {0, 3}}, {3, 2, {1, 5}}, {3, 2, {0, 1}}, {2, 4, {2, 5}}})
    for (const bool sequence_parallel : {false, true}) {
      options.ranks = without(tp, gtp, 1, dead);
      options.sequence_parallel = sequence_parallel;
      options.coalesce_bytes = sequence_parallel ? 1 << 20 : 0;
      expect_within_fp64_bounds(expected, run(options), ::testing::PrintToString(std::tuple(tp, gtp, dead)));
    }
}

// If the same slot is dead in every tp group, the run has the same bits as a run with smaller tp groups and these
// parts, in every type.
TEST(Adoption, OfTheSameSlotEverywhereHasTheBitsOfSmallerGroupsWithTheseParts) {
  constexpr auto fp32 = quant::DType::fp32;
  constexpr auto fp8 = quant::Format::fp8;
  struct Case {
    int tp, gtp, dp;
    shard::Slots slots;
    quant::DType dtype;
    quant::Format wire = quant::Format::bf16, products = quant::Format::bf16;
  };
  for (const Case& it : {Case{3, 1, 2, {0, 2}, fp32},
                         {3, 2, 1, {1, 2}, fp32},
                         {2, 1, 1, {1}, quant::DType::bf16},
                         {4, 1, 2, {0, 3}, quant::DType::bf16},
                         {3, 2, 2, {0, 1}, quant::DType::bf16},
                         {3, 2, 1, {0, 2}, quant::DType::bf16, fp8},
                         {3, 1, 2, {0, 2}, quant::DType::bf16, fp8, fp8}}) {
    RunOptions options{.model = odd_model(),
                       .tp = static_cast<int>(it.slots.size()),
                       .gtp = it.gtp,
                       .dp = it.dp,
                       .dtype = it.dtype,
                       .sequence_parallel = it.slots.size() > 1,
                       .blocks = 4,
                       .wire = it.wire,
                       .products = it.products};
    options.parts = parts_of(options.model, it.tp, it.slots);
    const RunResult expected = run(options);
    options.parts.reset();
    std::vector<int> dead;
    for (int place = 0; place < it.tp * it.gtp * it.dp; ++place)
      if (std::ranges::find(it.slots, place % it.tp) == it.slots.end()) dead.push_back(place);
    options.ranks = without(it.tp, it.gtp, it.dp, dead);
    for (const bool zero : {false, true}) {
      options.zero = zero;
      expect_same_bits(expected, run(options), fmt::format("tp {} gtp {} dp {}, zero {}", it.tp, it.gtp, it.dp, zero));
    }
  }
}

// A norm adds the parts of the tp group's ranks only. A group may consist of one rank.
TEST(Adoption, TransfersInPiecesChangeNoBit) {
  for (const auto& [tp, gtp, dead] : {std::tuple{2, 1, std::vector{0}}, {2, 2, {1, 2}}, {3, 2, {0, 4}}, {4, 1, {1}}}) {
    RunOptions options{
        .model = odd_model(), .dtype = quant::DType::bf16, .sequence_parallel = true, .blocks = 4, .seq_len = 7};
    options.ranks = without(tp, gtp, 1, dead);
    const RunResult expected = run(options);
    options.product_options.tp_overlap = true;
    options.replay.poison = true;
    expect_same_bits(expected, run(options), ::testing::PrintToString(std::tuple(tp, gtp, dead)));
  }
}

// A smaller tp group splits the sums of four products of each layer in another way: the outputs of attention and
// feed-forward, and the gradients of the inputs of both. Each part and each sum is rounded to bf16, by 2^-9 of its
// size, in either run. So the runs differ by at most 2^-8 for each of these products, relative to the largest element.
TEST(Adoption, StaysWithinRoundingsOfFullGroupsInBf16) {
  RunOptions options{.model = odd_model(), .tp = 3, .dp = 2, .dtype = quant::DType::bf16, .blocks = 4, .steps = 1};
  options.clip = 1e9;
  const double bound = 0x1p-8 * 4 * static_cast<double>(options.model.num_layers);
  for (const bool sequence_parallel : {false, true}) {
    options.sequence_parallel = sequence_parallel;
    options.ranks.reset();
    const RunResult expected = run(options);
    options.ranks = without(3, 1, 2, {1, 3, 5});
    const RunResult found = run(options);
    EXPECT_NEAR(found.losses[0], expected.losses[0], 0x1p-8 * expected.losses[0]);
    EXPECT_NEAR(found.norms[0], expected.norms[0], bound * expected.norms[0]);
    for (const auto& [name, values] : expected.tensors) {
      if (!name.starts_with("main_grad/")) continue;
      const double difference = testing::largest_difference(values, found.tensors.at(name));
      EXPECT_LE(difference, bound * testing::largest(values)) << name;
    }
  }
}

TEST(Adoption, WithoutDeadPlacesChangesNoBit) {
  RunOptions options{.model = odd_model(), .tp = 3, .dp = 2, .sequence_parallel = true, .blocks = 4};
  const RunResult expected = run(options);
  options.ranks = without(3, 1, 2, {});
  EXPECT_EQ(run(options), expected);
}

// Only samples of the full replica have targets, so the loss is a sum over its ranks' forward passes.
TEST(Adoption, LeavesTheForwardBitsOfAFullReplica) {
  for (const quant::DType dtype : {quant::DType::fp32, quant::DType::bf16})
    for (const int gtp : {1, 2}) {
      RunOptions options{
          .model = odd_model(), .tp = 3, .gtp = gtp, .dp = 2, .dtype = dtype, .sequence_parallel = true, .steps = 0};
      std::mutex mutex;
      std::vector<double> losses;
      options.at_end = [&](Trainer& trainer) {
        const auto& place = trainer.parallel().place();
        const double loss =
            trainer.evaluate({.microbatches = 2, .tokens = 4 * gtp * options.seq_len, .batch = [&](int k) {
                                models::Batch batch =
                                    testing::sample(options, 4 * place.replica + k * gtp + place.part);
                                if (place.replica == 1) batch.targets.fill_(-1);
                                return batch;
                              }});
        const std::lock_guard lock(mutex);
        losses.push_back(loss);
      };
      run(options);
      for (const int dead : {3 * gtp, 6 * gtp - 1}) {
        options.ranks = without(3, gtp, 2, {dead});
        run(options);
      }
      EXPECT_EQ(losses.size(), static_cast<std::size_t>(3 * 6 * gtp - 2));
      for (const double loss : losses) EXPECT_EQ(loss, losses.front());
      EXPECT_GT(losses.front(), 0);
    }
}

// Every element is written once and read by every rank that stores it, between adopted and full groups.
TEST(Adoption, ResumesCheckpointsOfEveryMesh) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "tessera_adoption";
  const auto set = [](RunOptions& options, int mesh) {
    const std::vector<shard::RankLayout> all{without(1, 1, 1, {}), without(3, 1, 1, {}), without(3, 1, 2, {1}),
                                             without(2, 3, 1, {0, 3}), without(2, 1, 2, {0, 3})};
    options.ranks = all[static_cast<std::size_t>(mesh)];
    options.zero = mesh == 2;
  };
  for (int writer = 0; writer < 5; ++writer) {
    std::filesystem::remove_all(folder);
    RunOptions options{.model = odd_model(), .blocks = 6, .steps = 2};
    set(options, writer);
    options.after_step = [&](Trainer& trainer, int step) {
      if (step == 1) save_trainer(trainer, folder, 2, nlohmann::json::object());
    };
    const RunResult written = run(options);
    for (int reader = 0; reader < 5; ++reader) {
      RunOptions other{.model = odd_model(), .blocks = 6, .steps = 1, .left_out = {0}};
      set(other, reader);
      other.at_end = [&](Trainer& trainer) { load_trainer(trainer, checkpoint::CheckpointReader(folder)); };
      const RunResult read = run(other);
      EXPECT_EQ(read.updates, 2);
      for (const auto& [name, values] : written.tensors) {
        if (name.starts_with("main_grad/")) continue;
        EXPECT_EQ(read.tensors.at(name), values) << name << " from " << writer << " to " << reader;
      }
    }
  }
  std::filesystem::remove_all(folder);
}

TEST(AdoptionRefuses, TilesRowsAndExperts) {
  RunOptions options{.model = odd_model(), .dtype = quant::DType::bf16, .steps = 1};
  options.ranks = without(2, 2, 1, {1});
  for (const quant::Format format : {quant::Format::fp8_block, quant::Format::mxfp8, quant::Format::nvfp4}) {
    options.wire = format;
    EXPECT_THAT([&] { run(options); }, ThrowsMessage<InputError>(HasSubstr(std::string(name_of(format)))));
  }
  options.wire = quant::Format::bf16;
  options.embedding = shard::Lookup::rows;
  EXPECT_THROW(run(options), Error);
  options.embedding = shard::Lookup::automatic;
  EXPECT_NO_THROW(run(options));
  options.model = testing::sparse_model();
  EXPECT_THAT([&] { run(options); },
              ThrowsMessage<InputError>(HasSubstr("a model with experts needs a rank at every place")));
}

}  // namespace
}  // namespace tessera::train
