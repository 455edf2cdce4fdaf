#include "tessera/data/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "tessera/base/error.h"

namespace tessera::data {
namespace {
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::vector<std::int64_t> visit(const PermutationKey& key, std::int64_t size) {
  const Permutation permutation(key, size);
  std::vector<std::int64_t> order;
  for (std::int64_t i = 0; i < size; ++i) order.push_back(permutation(i));
  return order;
}

void expect_bijection(const PermutationKey& key, std::int64_t size) {
  std::vector<bool> seen(static_cast<std::size_t>(size));
  for (const std::int64_t sample : visit(key, size)) {
    ASSERT_GE(sample, 0);
    ASSERT_LT(sample, size);
    ASSERT_FALSE(seen[static_cast<std::size_t>(sample)]) << sample << " twice of " << size;
    seen[static_cast<std::size_t>(sample)] = true;
  }
}

TEST(Permutation, VisitsEverySampleOnce) {
  for (std::int64_t size = 1; size <= 300; ++size)
    for (std::int64_t epoch = 0; epoch < 3; ++epoch) expect_bijection({.seed = 7, .epoch = epoch}, size);
  for (const std::int64_t size : {1023, 1024, 1025, 4096, 4097, 99991, 262145, 300000})
    expect_bijection({.seed = static_cast<std::uint64_t>(size) * 0x9E3779B97F4A7C15, .set = 3, .epoch = size}, size);
}

TEST(Permutation, StaysInLargeRangesWithoutRepeats) {
  for (const std::int64_t size : {(std::int64_t{1} << 40) + 12345, std::int64_t{1} << 62}) {
    const Permutation permutation({.seed = 1}, size);
    std::set<std::int64_t> seen;
    for (std::int64_t i = 0; i < 20000; ++i) {
      const std::int64_t sample = permutation(i);
      ASSERT_TRUE(sample >= 0 && sample < size);
      ASSERT_TRUE(seen.insert(sample).second);
    }
  }
}

// These values were computed by an implementation of the header's definition in another language.
TEST(Permutation, MatchesItsDocumentation) {
  EXPECT_THAT(visit({.seed = 7}, 10), ElementsAre(4, 8, 9, 3, 1, 2, 7, 5, 6, 0));
  EXPECT_THAT(visit({.seed = 7, .epoch = 1}, 10), ElementsAre(0, 8, 3, 5, 6, 9, 7, 2, 4, 1));
  EXPECT_THAT(visit({.seed = 7, .set = 1}, 10), ElementsAre(4, 3, 6, 0, 8, 7, 5, 9, 2, 1));
  EXPECT_EQ(Permutation({.seed = ~std::uint64_t{0}, .epoch = 5}, 1000000007)(123456789), 243500143);
  EXPECT_EQ(Permutation({.seed = 0}, 1)(0), 0);
}

// Over many epochs each of the 4! orders of four samples is equally likely: chi-square with 23 degrees of freedom is
// below 64.2 with probability 1 - 1e-5. The seeds are fixed, so the result does not vary.
TEST(Permutation, TakesEveryOrderEquallyOften) {
  std::map<std::vector<std::int64_t>, int> counts;
  constexpr int epoch_count = 24000;
  for (std::int64_t epoch = 0; epoch < epoch_count; ++epoch) ++counts[visit({.seed = 42, .epoch = epoch}, 4)];
  EXPECT_EQ(counts.size(), 24u);
  double chi_square = 0;
  for (const auto& [order, count] : counts) chi_square += (count - 1000.0) * (count - 1000.0) / 1000.0;
  EXPECT_LT(chi_square, 64.2);
}

// Neighbours in the order are far apart in the data: the mean distance of two random samples of N is (N^2 - 1) / 3N,
// with standard deviation of one distance N / sqrt(18); over 9999 pairs, five of the mean's deviations are 0.0118 N.
TEST(Permutation, ScattersNeighbours) {
  constexpr std::int64_t set_size = 10000;
  const auto order = visit({.seed = 3}, set_size);
  double sum = 0;
  for (std::size_t i = 1; i < order.size(); ++i) sum += static_cast<double>(std::abs(order[i] - order[i - 1]));
  EXPECT_NEAR(sum / (set_size - 1), set_size / 3.0, 0.0118 * set_size);
}

TEST(Samples, AreCountedWithTheirLastTarget) {
  EXPECT_EQ(num_samples(0, 4), 0);
  EXPECT_EQ(num_samples(1, 4), 0);
  EXPECT_EQ(num_samples(4, 4), 0);
  EXPECT_EQ(num_samples(5, 4), 1);
  EXPECT_EQ(num_samples(8, 4), 1);
  EXPECT_EQ(num_samples(9, 4), 2);
}

TEST(Samples, ContinueAcrossEpochs) {
  constexpr std::int64_t set_size = 5;
  std::vector<std::int64_t> got;
  for (std::int64_t p = 0; p < 3 * set_size; ++p) got.push_back(sample_at(9, 0, set_size, p));
  std::vector<std::int64_t> expected;
  for (std::int64_t epoch = 0; epoch < 3; ++epoch)
    for (const std::int64_t sample : visit({.seed = 9, .epoch = epoch}, set_size)) expected.push_back(sample);
  EXPECT_EQ(got, expected);
}

// Returns the first position of a block.
std::int64_t first_of(const BatchShape& shape, const Block& block) {
  return positions_of(shape, block).first;
}

TEST(Blocks, SplitTheGlobalBatch) {
  // 2 replicas x 3 readers, micro-batch 2, global batch 24: 12 sequences a replica, 6 blocks, 2 microbatches.
  const BatchShape shape = equal_shares(2, 24, {3, 3});
  EXPECT_EQ(microbatches_per_step(shape, 0), 2);
  EXPECT_EQ(microbatches_per_step(shape, 1), 2);
  EXPECT_EQ(first_of(shape, {.step = 1}), 0);
  EXPECT_EQ(first_of(shape, {.step = 1, .reader = 2}), 4);
  EXPECT_EQ(first_of(shape, {.step = 1, .reader = 1, .microbatch = 1}), 8);
  EXPECT_EQ(first_of(shape, {.step = 1, .replica = 1}), 12);
  EXPECT_EQ(first_of(shape, {.step = 3, .replica = 1, .reader = 2, .microbatch = 1}), 48 + 12 + 10);
}

// Returns the positions of all blocks of a step, replica by replica in block order.
std::vector<std::int64_t> positions_in(const BatchShape& shape, std::int64_t step) {
  std::vector<std::int64_t> positions;
  for (std::int64_t d = 0; d < static_cast<std::int64_t>(shape.replicas.size()); ++d)
    for (std::int64_t m = 0; m < microbatches_per_step(shape, d); ++m)
      for (std::int64_t g = 0; g < shape.replicas[static_cast<std::size_t>(d)].readers; ++g) {
        const auto [first, count] = positions_of(shape, {.step = step, .replica = d, .reader = g, .microbatch = m});
        EXPECT_LE(count, shape.micro_batch);
        for (std::int64_t i = 0; i < count; ++i) positions.push_back(first + i);
      }
  return positions;
}

TEST(Blocks, TheMicrobatchesOfAllReplicasAreThoseOfEach) {
  BatchShape shape = equal_shares(2, 41, {2, 1, 2, 3, 1, 2});
  shape.replicas[2].schedule = shape.replicas[4].schedule = 1;
  shape.replicas[5].sequences += 20;
  const std::vector<std::int64_t> all = microbatches_by_replica(shape);
  ASSERT_EQ(all.size(), shape.replicas.size());
  for (std::size_t replica = 0; replica < all.size(); ++replica)
    EXPECT_EQ(all[replica], microbatches_per_step(shape, static_cast<std::int64_t>(replica)));
}

TEST(Blocks, CoverEveryStepOnceForEveryMesh) {
  for (const std::int64_t micro : {1, 2, 5})
    for (const std::vector<std::int64_t>& readers :
         {std::vector<std::int64_t>{1}, {2}, {3}, {7}, {1, 1}, {3, 3}, {1, 2}, {3, 2, 1}, {2, 5, 2, 1}})
      for (const std::int64_t global : {1, 2, 23, 24}) {
        const BatchShape shape = equal_shares(micro, global, readers);
        const std::vector<std::int64_t> positions = positions_in(shape, 2);
        ASSERT_EQ(static_cast<std::int64_t>(positions.size()), global);
        for (std::int64_t i = 0; i < global; ++i) ASSERT_EQ(positions[static_cast<std::size_t>(i)], global + i);
      }
}

TEST(Blocks, EqualReplicasHaveEqualNumbersOfMicrobatches) {
  // 7 sequences for 3 replicas: 3, 2 and 2. The replica with one reader has other microbatches.
  const BatchShape shape = equal_shares(1, 7, {2, 1, 2});
  EXPECT_EQ(microbatches_per_step(shape, 0), 2);
  EXPECT_EQ(microbatches_per_step(shape, 1), 2);
  EXPECT_EQ(microbatches_per_step(shape, 2), 2);
  EXPECT_EQ(positions_of(shape, {.replica = 2, .microbatch = 1}).count, 0);
  const BatchShape unequal{
      .micro_batch = 1,
      .global_batch = 9,
      .replicas = {{.sequences = 8, .readers = 2}, {.sequences = 1, .readers = 2}, {.readers = 1}}};
  EXPECT_EQ(microbatches_per_step(unequal, 1), 4);
  EXPECT_EQ(microbatches_per_step(unequal, 2), 1) << "a replica without sequences computes a masked block";
  BatchShape reduced = unequal;
  reduced.replicas[1].schedule = 1;
  EXPECT_EQ(microbatches_per_step(reduced, 0), 4);
  EXPECT_EQ(microbatches_per_step(reduced, 1), 1) << "a replica with another schedule needs no masked blocks";
}

TEST(Blocks, OutsideTheBatchAreErrors) {
  const BatchShape shape = equal_shares(2, 24, {3, 3});
  const auto refusal_of = [&](const Block& block) { return [&shape, block] { positions_of(shape, block); }; };
  EXPECT_THAT(refusal_of({.step = 0}),
              ThrowsMessage<Error>(HasSubstr("invalid block (step 0, replica 0, reader 0, microbatch 0)")));
  EXPECT_THAT(refusal_of({.replica = 2}),
              ThrowsMessage<Error>(HasSubstr("invalid block (step 1, replica 2, reader 0, microbatch 0)")));
  EXPECT_THAT(refusal_of({.reader = 3}),
              ThrowsMessage<Error>(HasSubstr("invalid block (step 1, replica 0, reader 3, microbatch 0)")));
  EXPECT_THAT(refusal_of({.microbatch = 2}),
              ThrowsMessage<Error>(HasSubstr("invalid block (step 1, replica 0, reader 0, microbatch 2)")));
}

}  // namespace
}  // namespace tessera::data
