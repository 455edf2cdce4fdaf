#include "tessera/shard/matrices/matrix_ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "tessera/base/error.h"

namespace tessera::shard {
namespace {

// The operations of five Newton-Schulz steps.
double flops_of(std::int64_t rows, std::int64_t cols) {
  const auto m = static_cast<double>(std::min(rows, cols)), n = static_cast<double>(std::max(rows, cols));
  return 5 * (4 * m * m * n + 2 * m * m * m);
}

struct MatrixSize {
  std::int64_t rows, cols;
};

// The matrices of a model, in buckets of some layers.
struct ModelShapes {
  std::vector<MatrixSize> layer;
  int layers, buckets;
};

ModelShapes with_experts(std::vector<MatrixSize> attention, int experts, std::int64_t hidden, std::int64_t width,
                         int layers) {
  for (int i = 0; i < experts; ++i)
    for (const MatrixSize size : {MatrixSize{width, hidden}, {width, hidden}, {hidden, width}})
      attention.push_back(size);
  return {std::move(attention), layers, 8};
}

std::vector<ModelShapes> models() {
  return {
      with_experts({{4096, 4096}, {1024, 4096}, {1024, 4096}, {4096, 4096}}, 8, 4096, 14336, 32),
      with_experts({{4096, 2048}, {512, 2048}, {512, 2048}, {2048, 4096}}, 128, 2048, 768, 48),
      {{{8192, 8192}, {1024, 8192}, {1024, 8192}, {8192, 8192}, {28672, 8192}, {28672, 8192}, {8192, 28672}}, 80, 8}};
}

std::vector<std::vector<MatrixWork>> buckets_of(const ModelShapes& model, std::span<const int> candidates) {
  std::vector<std::vector<MatrixWork>> buckets(static_cast<std::size_t>(model.buckets));
  for (int layer = 0; layer < model.layers; ++layer)
    for (const MatrixSize& size : model.layer)
      buckets[static_cast<std::size_t>(layer * model.buckets / model.layers)].push_back(
          {flops_of(size.rows, size.cols), candidates});
  return buckets;
}

// The rule as the specification of the function states it.
std::vector<int> simple_ranks(std::span<const MatrixWork> bucket, std::vector<double>& sums) {
  std::vector<int> ranks(bucket.size(), -1);
  for (std::size_t taken = 0; taken < bucket.size(); ++taken) {
    std::size_t next = bucket.size();
    for (std::size_t i = 0; i < bucket.size(); ++i)
      if (ranks[i] < 0 && (next == bucket.size() || bucket[i].flops > bucket[next].flops)) next = i;
    int best = bucket[next].candidates.front();
    for (const int rank : bucket[next].candidates)
      if (sums[static_cast<std::size_t>(rank)] < sums[static_cast<std::size_t>(best)]) best = rank;
    ranks[next] = best;
    sums[static_cast<std::size_t>(best)] += bucket[next].flops;
  }
  return ranks;
}

TEST(MatrixRanks, CoverEveryMatrixAndDifferByAtMostTheLargest) {
  for (const ModelShapes& model : models())
    for (const int ranks : {1, 2, 3, 4, 7, 8, 16, 64, 100, 512, 1000, 4096}) {
      std::vector<int> all(static_cast<std::size_t>(ranks));
      std::iota(all.begin(), all.end(), 0);
      MatrixRanks assigned(ranks);
      std::vector<double> sums(static_cast<std::size_t>(ranks));
      double largest = 0;
      for (const std::vector<MatrixWork>& bucket : buckets_of(model, all)) {
        const std::vector<int> chosen = assigned.assign(bucket);
        ASSERT_EQ(chosen.size(), bucket.size());
        for (std::size_t i = 0; i < bucket.size(); ++i) {
          ASSERT_TRUE(chosen[i] >= 0 && chosen[i] < ranks);
          sums[static_cast<std::size_t>(chosen[i])] += bucket[i].flops;
          largest = std::max(largest, bucket[i].flops);
        }
        const auto [least, most] = std::ranges::minmax(sums);
        EXPECT_LE(most - least, largest) << ranks;
      }
      EXPECT_EQ(sums, assigned.sums());
    }
}

TEST(MatrixRanks, FollowTheRuleForAnyCandidates) {
  std::mt19937 random(7);
  for (int turn = 0; turn < 300; ++turn) {
    const int ranks = 1 + static_cast<int>(random() % 9);
    std::vector<std::vector<int>> lists(4);
    for (std::vector<int>& list : lists) {
      for (int rank = 0; rank < ranks; ++rank)
        if (random() % 2 == 0) list.push_back(rank);
      if (list.empty()) list.push_back(static_cast<int>(random() % static_cast<unsigned>(ranks)));
    }
    MatrixRanks assigned(ranks);
    std::vector<double> sums(static_cast<std::size_t>(ranks));
    for (int b = 0; b < 3; ++b) {
      std::vector<MatrixWork> bucket(random() % 12);
      for (MatrixWork& matrix : bucket)
        matrix = {.flops = static_cast<double>(random() % 5), .candidates = lists[random() % lists.size()]};
      EXPECT_EQ(assigned.assign(bucket), simple_ranks(bucket, sums));
      EXPECT_EQ(assigned.sums(), sums);
    }
  }
}

TEST(MatrixRanks, RefusesMatricesWithoutValidCandidates) {
  MatrixRanks assigned(2);
  EXPECT_THROW(assigned.assign(std::vector<MatrixWork>{{.flops = 1, .candidates = {}}}), Error);
  for (const std::vector<int>& list : std::vector<std::vector<int>>{{2}, {-1, 0}, {1, 0}, {1, 1}})
    EXPECT_THROW(assigned.assign(std::vector<MatrixWork>{{.flops = 1, .candidates = list}}), Error);
}

}  // namespace
}  // namespace tessera::shard
