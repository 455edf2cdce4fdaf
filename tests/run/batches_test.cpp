// Checks that the ranks of a step read every sample exactly once, on every mesh.
#include "tessera/train/batches.h"

#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <set>

#include "tessera/comm/local/world.h"
#include "tessera/nn/mesh_degrees.h"
#include "tests/base/files.h"
#include "tests/data/dataset_writer.h"
#include "tests/settings/config_test_support.h"

namespace tessera::run {
namespace {
using Tokens = std::set<std::int64_t>;

constexpr std::int64_t kLength = 4;

struct Mesh {
  std::int64_t gtp, dp, micro_batch;
};

// A data set with the tokens 0, 1, 2, ... in documents of 1 to 9 tokens. The value of a token is its position.
struct Counting {
  std::string prefix;
  std::int64_t samples;
  Tokens starts;  // the first token of each document

  Counting(const std::filesystem::path& path, std::int64_t samples) : prefix(path.string()), samples(samples) {
    const std::int64_t tokens = samples * kLength + 1;
    data::IndexedDatasetWriter writer(prefix, data::TokenType::u16);
    for (std::int64_t first = 0, size = 1; first < tokens; first += size, size = size % 9 + 1) {
      std::vector<std::int64_t> document;
      for (std::int64_t token = first; token < std::min(tokens, first + size); ++token) document.push_back(token);
      starts.insert(first);
      writer.add_sequence(document);
      writer.end_document();
    }
    writer.finish();
  }

  // Returns the targets of these samples that count in the loss.
  Tokens targets_of(const Tokens& chosen, bool mask_documents) const {
    Tokens targets;
    for (const std::int64_t sample : chosen)
      for (std::int64_t token = sample * kLength + 1; token <= (sample + 1) * kLength; ++token)
        if (!mask_documents || !starts.contains(token)) targets.insert(token);
    return targets;
  }
};

// A run of a small model and its data.
struct ReadingRun {
  settings::ResolvedRun run;
  std::shared_ptr<const data::TrainingData> data;
};

ReadingRun plan_of(const Counting& tokens, const Mesh& mesh, bool mask_documents) {
  settings::TrainConfig config{
      .mesh = {.gtp = mesh.gtp, .dp = mesh.dp}, .micro_batch = mesh.micro_batch, .seq_len = kLength};
  config.global_batch = mesh.gtp * mesh.dp * mesh.micro_batch * 2;
  config.given = {"global_batch"};
  config.mask_documents = mask_documents;
  return {.run = settings::run_of(config),
          .data = std::make_shared<data::TrainingData>(data::TrainingDataOptions{.blend = {tokens.prefix},
                                                                                 .seq_len = kLength,
                                                                                 .vocab_size = 1000,
                                                                                 .seed = 3,
                                                                                 .mask_documents = mask_documents})};
}

// The data that the ranks of a mesh read together.
struct Read {
  std::map<std::int64_t, int> times;               // by target that counts: how often it is read
  std::map<std::int64_t, Tokens> replicas;         // by sample: which replicas read targets of it
  Tokens token_counts, numbers_of_microbatches;    // of the ranks' inputs
  std::map<std::int64_t, std::int64_t> sequences;  // by place in the global batch, from first_token: the sample
};

void add_batch(Read& read, const models::Batch& batch, int replica) {
  const auto *tokens = batch.tokens.data_ptr<std::int64_t>(), *targets = batch.targets.data_ptr<std::int64_t>();
  EXPECT_EQ(batch.first_token % kLength, 0);
  for (std::int64_t i = 0; i < batch.layout.batch; ++i)
    read.sequences[batch.first_token / kLength + i] = tokens[i * kLength] / kLength;
  for (std::int64_t i = 0; i < batch.tokens.numel(); ++i) {
    if (targets[i] < 0) continue;
    EXPECT_EQ(targets[i], tokens[i] + 1);
    ++read.times[targets[i]];
    read.replicas[tokens[i] / kLength].insert(replica);
  }
}

Read read_all(const ReadingRun& plan, const std::function<train::StepInput(const shard::ParallelGroups&)>& input_of) {
  Read read;
  std::mutex mutex;
  comm::run_local(static_cast<int>(plan.run.mesh().ranks), {}, [&](comm::World& world) {
    const shard::ParallelGroups parallel = shard::make_parallel_groups(world, nn::rank_layout(plan.run.degrees()));
    const train::StepInput input = input_of(parallel);
    const std::lock_guard lock(mutex);
    read.token_counts.insert(input.tokens);
    read.numbers_of_microbatches.insert(input.microbatches);
    for (int microbatch = 0; microbatch < input.microbatches; ++microbatch) {
      const models::Batch batch = input.batch(microbatch);
      EXPECT_EQ(batch.layout.batch, plan.run->micro_batch);
      ASSERT_EQ(batch.tokens.numel(), plan.run->micro_batch * kLength);
      add_batch(read, batch, parallel.place().replica);
    }
  });
  return read;
}

void expect_read_once(const Read& read, const Tokens& targets) {
  Tokens found;
  for (const auto& [target, times] : read.times) {
    EXPECT_EQ(times, 1) << "target " << target;
    found.insert(target);
  }
  EXPECT_EQ(found, targets);
  EXPECT_EQ(read.token_counts, Tokens{static_cast<std::int64_t>(targets.size())});
  EXPECT_EQ(read.numbers_of_microbatches.size(), 1u);
}

using Check = std::function<void(const Counting& tokens, const ReadingRun& plan)>;

void on_every_mesh(const Counting& tokens, const Check& check) {
  for (const Mesh& mesh : {Mesh{1, 1, 1}, Mesh{1, 1, 2}, Mesh{3, 1, 2}, Mesh{1, 2, 1}, Mesh{2, 2, 3}, Mesh{2, 4, 2}})
    for (const bool mask_documents : {false, true}) {
      SCOPED_TRACE(fmt::format("{} samples, gtp {}, dp {}, micro-batch {}{}", tokens.samples, mesh.gtp, mesh.dp,
                               mesh.micro_batch, mask_documents ? ", masked documents" : ""));
      check(tokens, plan_of(tokens, mesh, mask_documents));
    }
}

TEST(EvaluationInput, HoldsEveryTargetOnce) {
  const base::TempFolder folder;
  for (const std::int64_t samples : {1, 2, 13, 16})
    on_every_mesh({folder / std::to_string(samples), samples}, [&](const Counting& tokens, const ReadingRun& plan) {
      const Read read = read_all(plan, [&](const auto& parallel) {
        return train::evaluation_input(*plan.data, {.micro_batch = plan.run->micro_batch, .seq_len = kLength},
                                       parallel);
      });
      Tokens all;
      for (std::int64_t sample = 0; sample < samples; ++sample) all.insert(sample);
      expect_read_once(read, tokens.targets_of(all, plan.run->mask_documents));
      std::int64_t last = 0;
      for (const auto& [sample, replicas] : read.replicas) {
        EXPECT_EQ(replicas.size(), 1u) << "sample " << sample;
        EXPECT_GE(*replicas.begin(), last) << "shares of replicas are not consecutive";
        last = *replicas.begin();
      }
    });
}

TEST(EvaluationInput, TakesSamplesAtEqualDistances) {
  const base::TempFolder folder;
  on_every_mesh({folder / "tokens", 17}, [&](const Counting& tokens, const ReadingRun& plan) {
    const std::pair<std::int64_t, Tokens> cases[]{
        {1, {0}}, {3, {0, 5, 11}}, {4, {0, 4, 8, 12}}, {16, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}}};
    for (const auto& [count, samples] : cases) {
      const train::EvaluationShape shape{.micro_batch = plan.run->micro_batch, .seq_len = kLength, .samples = count};
      EXPECT_EQ(train::evaluated_samples(*plan.data, shape), count);
      const Read read =
          read_all(plan, [&](const auto& parallel) { return train::evaluation_input(*plan.data, shape, parallel); });
      expect_read_once(read, tokens.targets_of(samples, plan.run->mask_documents));
    }
    EXPECT_EQ(train::evaluated_samples(*plan.data, {.samples = 18}), 17);
  });
}

TEST(TrainingInput, HoldsTheSamplesOfTheStepOnce) {
  const base::TempFolder folder;
  on_every_mesh({folder / "tokens", 100}, [&](const Counting& tokens, const ReadingRun& plan) {
    for (const std::int64_t step : {1, 2}) {
      const Read read = read_all(plan, [&](const auto& parallel) {
        train::StepInput input = train::training_input(*plan.data, {plan.run.batch(), kLength}, parallel, step);
        EXPECT_EQ(input.step, step);
        return input;
      });
      Tokens samples;
      for (std::int64_t i = 0; i < plan.run->global_batch; ++i) {
        const std::int64_t sample = plan.data->sample((step - 1) * plan.run->global_batch + i).index;
        samples.insert(sample);
        EXPECT_EQ(read.sequences.at(i), sample) << "place " << i;
      }
      EXPECT_EQ(read.sequences.size(), samples.size());
      EXPECT_EQ(samples.size(), static_cast<std::size_t>(plan.run->global_batch));
      expect_read_once(read, tokens.targets_of(samples, plan.run->mask_documents));
    }
  });
}

}  // namespace
}  // namespace tessera::run
