// Tests the loss of held-out samples.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/train/training.h"

namespace tessera::train::testing {
namespace {

// Returns the samples first, first + 1, ... of the text. Each microbatch of this rank has one sample.
StepInput samples(const RunOptions& options, const shard::ParallelGroups& parallel, std::int64_t first,
                  int microbatches) {
  const std::int64_t parts = parallel.cuts().parts;
  return {.microbatches = microbatches,
          .tokens = microbatches * parts * options.seq_len,
          .batch = [&options, &parallel, parts, first](int microbatch) {
            return sample(options, first + microbatch * parts + parallel.place().part);
          }};
}

// A batch of an evaluation has at most 16 microbatches.
TEST(Evaluation, IsTheMeanOverAnyNumberOfMicrobatches) {
  RunOptions options{.model = odd_model(), .gtp = 2, .dtype = quant::DType::fp64, .seq_len = 4, .steps = 1};
  options.blocks = 2;
  options.at_end = [&](Trainer& trainer) {
    const shard::ParallelGroups& parallel = trainer.parallel();
    constexpr int kEach = 10;
    std::vector<double> means;
    for (int first = 0; first < 150; first += kEach)
      means.push_back(trainer.evaluate(samples(options, parallel, std::int64_t{first} * options.gtp, kEach)));
    EXPECT_NE(means.front(), means.back());
    for (const int microbatches : {60, 70, 130, 150}) {
      double sum = 0;
      for (int i = 0; i < microbatches / kEach; ++i) sum += means[static_cast<std::size_t>(i)];
      const double mean = sum * kEach / microbatches;
      EXPECT_NEAR(trainer.evaluate(samples(options, parallel, 0, microbatches)), mean, 1e-12 * mean) << microbatches;
    }
  };
  run(options);
}

// The call between batches of an evaluation may end it. The next evaluation and the next step are as before.
TEST(Evaluation, EndsWithoutALossIfTheCallBetweenBatchesRefuses) {
  RunOptions options{.model = odd_model(), .gtp = 2, .dtype = quant::DType::fp64, .seq_len = 4, .steps = 1};
  options.blocks = 2;
  options.at_end = [&](Trainer& trainer) {
    const StepInput input = samples(options, trainer.parallel(), 0, 40);
    const double whole = trainer.evaluate(input);
    for (int refused = 1; refused <= 3; ++refused) {
      std::vector<double> shares;
      const auto loss = trainer.evaluate(input, [&](double share) {
        shares.push_back(share);
        return static_cast<int>(shares.size()) != refused;
      });
      EXPECT_EQ(loss.has_value(), refused == 3);  // three batches have two calls between them
      EXPECT_EQ(shares.size(), static_cast<std::size_t>(std::min(refused, 2)));
      EXPECT_DOUBLE_EQ(shares.front(), 1.0 / 3);
      EXPECT_EQ(trainer.evaluate(input), whole);
    }
    EXPECT_FALSE(trainer.train_step(samples(options, trainer.parallel(), 0, 2), 1e-3).skipped);
  };
  run(options);
}

// Returns the samples with masked targets.
StepInput without_targets(StepInput input) {
  input.tokens = 0;
  input.batch = [batch = input.batch](int microbatch) {
    models::Batch masked = batch(microbatch);
    masked.targets.fill_(-1);
    return masked;
  };
  return input;
}

// The mean over nothing is not a number. The gradients of such a step are zero.
TEST(Evaluation, WithoutTargetsHasNoLoss) {
  RunOptions options{.model = odd_model(), .gtp = 2, .dtype = quant::DType::fp64, .seq_len = 4, .steps = 1};
  options.at_end = [&](Trainer& trainer) {
    const StepInput input = without_targets(samples(options, trainer.parallel(), 0, 2));
    EXPECT_TRUE(std::isnan(trainer.evaluate(input)));
    const StepResult result = trainer.train_step(input, 1e-3);
    EXPECT_TRUE(std::isnan(result.loss));
    EXPECT_EQ(result.grad_norm, 0);
    EXPECT_FALSE(result.skipped);
  };
  run(options);
}

}  // namespace
}  // namespace tessera::train::testing
