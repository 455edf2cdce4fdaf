#include "tessera/data/data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "tests/base/files.h"
#include "tests/data/dataset_writer.h"

namespace tessera::data {
namespace {
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;
using Tokens = std::vector<std::int64_t>;

std::string write_set(const std::filesystem::path& prefix, const std::vector<Tokens>& documents) {
  IndexedDatasetWriter writer(prefix.string(), TokenType::u16);
  for (const Tokens& document : documents) {
    writer.add_sequence(document);
    writer.end_document();
  }
  writer.finish();
  return prefix.string();
}

Tokens counting(std::int64_t first, std::int64_t count) {
  Tokens tokens;
  for (std::int64_t i = 0; i < count; ++i) tokens.push_back(first + i);
  return tokens;
}

TEST(Batch, HoldsInputsAndTheirNextTokens) {
  const base::TempFolder folder;
  const TrainingData data({.blend = {write_set(folder / "a", {counting(0, 13)})}, .seq_len = 4, .vocab_size = 100});
  EXPECT_EQ(data.num_samples(), 3);
  const Batch batch = data.assemble({{.index = 2}, {.index = 0}});
  EXPECT_THAT(batch.tokens, ElementsAre(8, 9, 10, 11, 0, 1, 2, 3));
  EXPECT_THAT(batch.targets, ElementsAre(9, 10, 11, 12, 1, 2, 3, 4));
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 2, 3, 0, 1, 2, 3));
  EXPECT_THAT(batch.cu_seqlens, IsEmpty());
  EXPECT_EQ(batch.loss_tokens, 8);
}

TEST(Batch, MaskedDocumentsRestartPositionsAndMaskTheLastTarget) {
  const base::TempFolder folder;
  // Documents of 2, 3, 3 and 5 tokens; samples of 4: [0 1 2 3 | 4], [4 5 6 7 | 8], [8 9 10 11 | 12].
  const std::string prefix = write_set(folder / "a", {counting(0, 2), counting(2, 3), counting(5, 3), counting(8, 5)});
  const TrainingData data({.blend = {prefix}, .seq_len = 4, .vocab_size = 100, .mask_documents = true});
  const Batch batch = data.assemble({{.index = 0}, {.index = 1}, {.index = 2}});
  EXPECT_THAT(batch.tokens, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11));
  EXPECT_THAT(batch.targets, ElementsAre(1, -1, 3, 4, -1, 6, 7, -1, 9, 10, 11, 12));
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 0, 1, 0, 0, 1, 2, 0, 1, 2, 3));
  EXPECT_THAT(batch.cu_seqlens, ElementsAre(0, 2, 4, 5, 8, 12));
  EXPECT_EQ(batch.loss_tokens, 9);
  EXPECT_EQ(data.loss_tokens({.index = 0}), 3);
  EXPECT_EQ(data.loss_tokens({.index = 1}), 2);
  EXPECT_EQ(data.loss_tokens({.index = 2}), 4);
}

// A resumed run keeps the shares of its checkpoint. A note reports that the weights give other shares.
TEST(Blends, AResumedRunKeepsTheSharesOfItsCheckpoint) {
  const base::TempFolder folder;
  const std::string a = write_set(folder / "a", {counting(0, 13)}), b = write_set(folder / "b", {counting(0, 50)});
  const auto blend = [&](const char* weight, nlohmann::json stored) {
    return TrainingData({.blend = {weight, a, "1", b}, .seq_len = 4, .vocab_size = 100, .stored = std::move(stored)});
  };
  const TrainingData fresh = blend("1e-9", nullptr);
  EXPECT_EQ(fresh.fingerprint()[0]["share"], 1);
  EXPECT_EQ(fresh.fingerprint()[1]["share"], 1000000000);
  EXPECT_EQ(fresh.note(), "");
  nlohmann::json stored = fresh.fingerprint();
  stored[1]["share"] = 65535;
  const TrainingData resumed = blend("1e-9", stored);
  EXPECT_EQ(resumed.fingerprint(), stored);
  EXPECT_THAT(resumed.note(),
              HasSubstr("set 1 has 1 of 65536 samples, 1.53e+04 times the share that its weight 1e-09 gives"));
  EXPECT_EQ(resumed.sample(32767).set, 0);  // the middle of the period, by the rule of the largest deficit
  EXPECT_EQ(fresh.sample(32767).set, 1);
  EXPECT_EQ(blend("1e-20", stored).fingerprint(), stored);  // refused without a checkpoint that stores these shares
  EXPECT_THAT(base::refusal([&] { blend("1.3e-20", nullptr); }), HasSubstr("--data: weight 1.3e-20"));
  const TrainingData held_out(
      {.blend = {"1.3e-20", a, "1", b}, .flag = "--valid", .seq_len = 4, .vocab_size = 100, .uses_weights = false});
  EXPECT_EQ(held_out.sample_in_order(0).set, 0);
  stored[1]["share"] = 65535;  // the share that results from the weights 1.4 and 65534.6
  const TrainingData fewer({.blend = {"1.4", a, "65534.6", b}, .seq_len = 4, .vocab_size = 100, .stored = stored});
  EXPECT_THAT(fewer.note(), HasSubstr("set 1 has 1 of 65536 samples, 0.714 times the share that its weight 1.4 gives"));
  // If the stored shares do not belong to the run's weights, the run does not keep them and differs from the
  // checkpoint.
  EXPECT_EQ(blend("0.5", stored).fingerprint()[1]["share"], 2);
  EXPECT_EQ(blend("0.5", {{{"share", "x"}}, 3}).fingerprint()[1]["share"], 2);
}

std::vector<Tokens> random_documents(std::mt19937_64& random, int count) {
  std::vector<Tokens> documents;
  for (int d = 0; d < count; ++d)
    documents.push_back(counting(static_cast<std::int64_t>(random() % 50), static_cast<std::int64_t>(random() % 9)));
  return documents;
}

// On every mesh, the number that each rank computes before a step equals the sum over the ranks' batches.
TEST(LossTokens, AreCountedBeforeTheStep) {
  const base::TempFolder folder;
  std::mt19937_64 random(2);
  const std::string a = write_set(folder / "a", random_documents(random, 60)),
                    b = write_set(folder / "b", random_documents(random, 30));
  for (const bool mask : {false, true}) {
    const TrainingData data(
        {.blend = {"0.7", a, "0.3", b}, .seq_len = 7, .vocab_size = 100, .seed = 5, .mask_documents = mask});
    for (const std::int64_t gtp : {1, 2, 3})
      for (std::int64_t step = 1; step <= 6; ++step) {
        const BatchShape shape = equal_shares(2, 24, {gtp, gtp});
        std::int64_t sum = 0;
        for (std::int64_t d = 0; d < 2; ++d)
          for (std::int64_t g = 0; g < gtp; ++g)
            for (std::int64_t m = 0; m < microbatches_per_step(shape, d); ++m) {
              const Batch batch =
                  data.assemble(data.samples_of(shape, {.step = step, .replica = d, .reader = g, .microbatch = m}));
              sum += std::count_if(batch.targets.begin(), batch.targets.end(), [](auto t) { return t >= 0; });
            }
        EXPECT_EQ(data.step_loss_tokens(shape, step), sum);
        if (!mask) {
          EXPECT_EQ(sum, 24 * 7);
        }
        if (mask) {
          EXPECT_LT(sum, 24 * 7);
        }
      }
  }
}

TEST(LossTokens, AreMissingInDocumentsOfOneToken) {
  const base::TempFolder folder;
  const std::string single = write_set(folder / "single", std::vector<Tokens>(40, counting(5, 1))),
                    pair = write_set(folder / "pair", {counting(0, 9), counting(0, 2)});
  const auto open = [&](const std::vector<std::string>& blend, bool mask) {
    return TrainingData({.blend = blend, .flag = "--valid", .seq_len = 4, .vocab_size = 100, .mask_documents = mask});
  };
  EXPECT_THAT(base::refusal([&] { open({single}, true).check_targets(); }),
              HasSubstr("--valid: no token of '" + single + "' is a target"));
  EXPECT_NO_THROW(open({single}, false).check_targets());
  EXPECT_NO_THROW(open({"1", single, "1", pair}, true).check_targets());
}

TEST(TrainingData, VisitsEverySetOncePerEpochByItsShare) {
  const base::TempFolder folder;
  const std::string a = write_set(folder / "a", {counting(0, 31)}), b = write_set(folder / "b", {counting(0, 21)});
  const TrainingData data(
      {.blend = {"3", a, "2", b}, .seq_len = 2, .vocab_size = 100, .seed = 1});  // 15 and 10 samples
  EXPECT_EQ(data.num_samples(), 25);
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    std::set<std::pair<std::int64_t, std::int64_t>> seen;
    for (std::int64_t p = 0; p < 25; ++p) {
      const SampleId id = data.sample(epoch * 25 + p);
      EXPECT_TRUE(seen.insert({id.set, id.index}).second);
    }
    EXPECT_EQ(seen.size(), 25u);
  }
  EXPECT_EQ(data.sample_in_order(14), (SampleId{.set = 0, .index = 14}));
  EXPECT_EQ(data.sample_in_order(15), (SampleId{.set = 1, .index = 0}));
  EXPECT_EQ(data.sample_in_order(24), (SampleId{.set = 1, .index = 9}));
  EXPECT_THAT([&] { data.sample_in_order(25); }, ThrowsMessage<Error>(HasSubstr("requested sample 25 of 25")));
}

TEST(TrainingData, OneSetFollowsThePermutationOfItsSeed) {
  const base::TempFolder folder;
  const std::string a = write_set(folder / "a", {counting(0, 21)});
  const TrainingData data({.blend = {a}, .seq_len = 2, .vocab_size = 100, .seed = 7});
  Tokens order;
  for (std::int64_t p = 0; p < 10; ++p) order.push_back(data.sample(p).index);
  EXPECT_THAT(order, ElementsAre(4, 8, 9, 3, 1, 2, 7, 5, 6, 0));  // as in sampler_test
}

TEST(TrainingData, RefusesSequencesLongerThanTheData) {
  const base::TempFolder folder;
  const std::string a = write_set(folder / "a", {counting(0, 8)});
  EXPECT_NO_THROW(TrainingData({.blend = {a}, .seq_len = 7, .vocab_size = 10}));
  const std::string message =
      base::refusal([&] { TrainingData({.blend = {a}, .flag = "--valid", .seq_len = 8, .vocab_size = 10}); });
  EXPECT_THAT(message, HasSubstr("--seq-len: got 8, but --valid '" + a + "' holds 8 tokens, expected at least 9"));
}

TEST(TrainingData, RefusesIdsOutsideTheVocabulary) {
  const base::TempFolder folder;
  const std::string a = write_set(folder / "a", {counting(0, 8)}), b = write_set(folder / "b", {counting(3, 8)});
  const TrainingData data({.blend = {"1", a, "1", b}, .seq_len = 3, .vocab_size = 10});
  EXPECT_THAT(base::refusal([&] { data.check_vocabulary(); }),
              HasSubstr("b.bin: token at byte 14 is 10, expected 0 to 9"));
  EXPECT_NO_THROW(data.assemble({{.set = 1, .index = 0}}));
  EXPECT_THAT([&] { TrainingData({.blend = {b}, .seq_len = 7, .vocab_size = 10}).assemble({{.index = 0}}); },
              ThrowsMessage<Error>(HasSubstr("expected 0 to 9: the file has changed")));
}

TEST(TrainingData, FingerprintDiffersForOtherData) {
  const base::TempFolder folder;
  const std::string a = write_set(folder / "a", {counting(0, 8), counting(0, 4)}),
                    same = write_set(folder / "same", {counting(0, 8), counting(0, 4)});
  const std::string other = write_set(folder / "other", {counting(0, 4), counting(0, 8)});
  const auto print = [](const std::vector<std::string>& blend) {
    return TrainingData({.blend = blend, .seq_len = 3, .vocab_size = 10}).fingerprint();
  };
  EXPECT_EQ(print({a}), print({same}));
  EXPECT_NE(print({a}), print({other}));
  EXPECT_NE(print({"1", a, "2", other}), print({"2", a, "1", other}));
}

}  // namespace
}  // namespace tessera::data
