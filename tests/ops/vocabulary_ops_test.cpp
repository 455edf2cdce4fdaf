// Tests embedding and cross-entropy, the operators over a vocabulary that is sharded over ranks.
#include <ATen/ops/cat.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tessera/base/error.h"
#include "tessera/ops/arithmetic.h"
#include "tessera/ops/cross_entropy/cross_entropy.h"
#include "tessera/ops/embedding/embedding.h"
#include "tests/ops/values.h"

namespace tessera::ops::test {
namespace {

class VocabularyOps : public KindTest {};
INSTANTIATE_TEST_SUITE_P(Kinds, VocabularyOps, testing::ValuesIn(every_kind()), name_of_kind);

// ---- Cross-entropy

struct Loss {
  at::Tensor losses, gradient;  // [tokens], [tokens, vocabulary]
};
// The columns of a rank are ranges of ids, in the order of this list.
using Columns = std::vector<std::pair<std::int64_t, std::int64_t>>;
IdRanges ids_of(const Columns& columns) {
  IdRanges ids;
  for (const auto& [begin, end] : columns) ids.add(begin, end - begin);
  return ids;
}

// Runs the phases over the ranks' columns, with the group's reductions in rank order.
Loss cross_entropy(const at::Tensor& logits, const at::Tensor& targets, const std::vector<Columns>& parts,
                   double scale) {
  std::vector<at::Tensor> slices;
  for (const Columns& columns : parts) {
    std::vector<at::Tensor> ranges{logits.narrow(1, 0, 0)};
    for (const auto& [begin, end] : columns) ranges.push_back(logits.narrow(1, begin, end - begin));
    slices.push_back(at::cat(ranges, 1).contiguous());
  }
  Values maximum = values_of(cross_entropy_maximum(slices[0]));
  for (std::size_t r = 1; r < parts.size(); ++r) {
    const Values other = values_of(cross_entropy_maximum(slices[r]));
    for (std::size_t i = 0; i < maximum.size(); ++i) maximum[i] = std::max(maximum[i], other[i]);
  }
  const at::Tensor largest = tensor_of(maximum, {logits.size(0)}, accumulator(logits.options()));
  at::Tensor total = cross_entropy_sums(slices[0], largest, targets, ids_of(parts[0]));
  for (std::size_t r = 1; r < parts.size(); ++r)
    total.add_(cross_entropy_sums(slices[r], largest, targets, ids_of(parts[r])));
  Loss result{.losses = {}, .gradient = logits.clone()};
  for (std::size_t r = 0; r < parts.size(); ++r) {
    const at::Tensor losses = cross_entropy_finish(slices[r], largest, total, targets, ids_of(parts[r]), scale);
    if (r == 0) result.losses = losses;
    EXPECT_TRUE(same_bits(losses, result.losses)) << "ranks disagree";
    std::int64_t at = 0;
    for (const auto& [begin, end] : parts[r]) {
      result.gradient.narrow(1, begin, end - begin).copy_(slices[r].narrow(1, at, end - begin));
      at += end - begin;
    }
  }
  return result;
}

// Runs the phases over slices that start at `cuts` (first 0, last the size of the vocabulary).
Loss cross_entropy(const at::Tensor& logits, const at::Tensor& targets, const std::vector<std::int64_t>& cuts,
                   double scale) {
  std::vector<Columns> parts;
  for (std::size_t r = 0; r + 1 < cuts.size(); ++r) parts.push_back({{cuts[r], cuts[r + 1]}});
  return cross_entropy(logits, targets, parts, scale);
}

struct LossReference {
  Values losses, gradient, gradient_scale;
  double range = 0;  // range of the logits
};
LossReference reference(const at::Tensor& logits, const std::vector<std::int64_t>& targets, double scale) {
  const Values in = values_of(logits);
  const auto vocabulary = static_cast<std::size_t>(logits.size(1));
  LossReference out{.gradient = Values(in.size()), .gradient_scale = Values(in.size())};
  for (std::size_t token = 0; token < targets.size(); ++token) {
    const double* row = in.data() + token * vocabulary;
    const double maximum = *std::max_element(row, row + vocabulary);
    out.range = std::max(out.range, maximum - *std::min_element(row, row + vocabulary));
    double sum = 0;
    for (std::size_t i = 0; i < vocabulary; ++i) sum += std::exp(row[i] - maximum);
    const bool masked = targets[token] < 0;
    out.losses.push_back(masked ? 0 : std::log(sum) + maximum - row[targets[token]]);
    for (std::size_t i = 0; i < vocabulary && !masked; ++i) {
      const double p = std::exp(row[i] - maximum) / sum;
      const double hot = static_cast<std::int64_t>(i) == targets[token] ? 1 : 0;
      out.gradient[token * vocabulary + i] = scale * (p - hot);
      out.gradient_scale[token * vocabulary + i] = std::abs(scale) * (p + hot);
    }
  }
  return out;
}

TEST_P(VocabularyOps, CrossEntropyEqualsTheReferenceForEveryDivision) {
  const std::vector<std::int64_t> targets = {0, 128, 17, -1, 64, 65};
  for (const double scale : {0.125, 0.0}) {
    const at::Tensor logits = random_tensor({6, 129}, 1, type(), 8.0);
    const LossReference expected = reference(logits, targets, scale);
    for (const std::vector<std::int64_t>& cuts :
         {std::vector<std::int64_t>{0, 129}, {0, 65, 129}, {0, 1, 100, 129}, {0, 64, 64, 129}, {0, 129, 129}}) {
      const Loss got = cross_entropy(logits, ids(targets), cuts, scale);
      // exp has an argument that is rounded (u times the range) and its own error below 3u. The sum is at most n
      // additions deep.
      const double error = (129 + 16 + 2 * expected.range) * u();
      expect_near(values_of(got.losses), expected.losses,
                  [&](std::size_t i) { return error + 4 * u() * (expected.losses[i] + expected.range); });
      if (scale == 0) {
        EXPECT_TRUE(same_bits(got.gradient, logits)) << "scale 0 must leave the logits alone";
        continue;
      }
      expect_near(values_of(got.gradient), expected.gradient, [&](std::size_t i) {
        return error * expected.gradient_scale[i] + once() * std::abs(expected.gradient[i]) + 1e-37;
      });
    }
  }
}

TEST_P(VocabularyOps, CrossEntropyOfRangesEqualsTheReference) {
  const std::vector<std::int64_t> targets = {0, 128, 17, -1, 64, 65, 40, 99, 100};
  const at::Tensor logits = random_tensor({9, 129}, 1, type(), 8.0);
  const LossReference expected = reference(logits, targets, 0.125);
  const std::vector<std::vector<Columns>> cases{{{{65, 129}, {0, 65}}},
                                                {{{0, 10}, {100, 129}}, {{40, 100}, {10, 40}}},
                                                {{{64, 65}, {0, 1}, {17, 18}}, {}, {{1, 17}, {65, 129}, {18, 64}}}};
  for (const std::vector<Columns>& parts : cases) {
    const Loss got = cross_entropy(logits, ids(targets), parts, 0.125);
    const double error = (129 + 16 + 2 * expected.range) * u();
    expect_near(values_of(got.losses), expected.losses,
                [&](std::size_t i) { return error + 4 * u() * (expected.losses[i] + expected.range); });
    expect_near(values_of(got.gradient), expected.gradient, [&](std::size_t i) {
      return error * expected.gradient_scale[i] + once() * std::abs(expected.gradient[i]) + 1e-37;
    });
  }
}

TEST_P(VocabularyOps, CrossEntropyOfALargeVocabularyEqualsTheReference) {
  constexpr std::int64_t vocab = 20008;
  const std::vector<std::int64_t> targets = {0, vocab - 1, 9000};
  const at::Tensor logits = random_tensor({3, vocab}, 1, type(), 4.0);
  const LossReference expected = reference(logits, targets, 2.0);
  const double error = (static_cast<double>(vocab) / kLanes + 32 + 2 * expected.range) * u();
  for (const std::vector<std::int64_t>& cuts : {std::vector<std::int64_t>{0, vocab}, {0, 8001, vocab}}) {
    const Loss got = cross_entropy(logits, ids(targets), cuts, 2.0);
    expect_near(values_of(got.losses), expected.losses,
                [&](std::size_t i) { return error + 4 * u() * (expected.losses[i] + expected.range); });
    expect_near(values_of(got.gradient), expected.gradient, [&](std::size_t i) {
      return error * expected.gradient_scale[i] + once() * std::abs(expected.gradient[i]) + 1e-37;
    });
  }
}

TEST_P(VocabularyOps, CrossEntropyOfLargeLogitsIsFinite) {
  const at::Tensor logits = tensor_of({3e4, -3e4, 0, 1e4, 1e4, 1e4}, {2, 3}, type());
  const Loss got = cross_entropy(logits, ids({1, 2}), {0, 2, 3}, 1.0);
  const Values losses = values_of(got.losses), in = values_of(logits);
  EXPECT_NEAR(losses[0], in[0] - in[1], 60000 * 2 * u());
  EXPECT_NEAR(losses[1], std::log(3.0), 1e-5);
  for (const double value : values_of(got.gradient)) EXPECT_TRUE(std::isfinite(value));
}

TEST_P(VocabularyOps, CrossEntropyAcceptsMaskedAndEmptyBatches) {
  const at::Tensor logits = random_tensor({2, 5}, 1, type());
  const Loss masked = cross_entropy(logits, ids({-1, -1}), {0, 2, 5}, 1.0);
  for (const double value : values_of(masked.losses)) EXPECT_EQ(value, 0.0);
  for (const double value : values_of(masked.gradient)) EXPECT_EQ(value, 0.0);
  const Loss empty = cross_entropy(random_tensor({0, 5}, 1, type()), ids({}), {0, 2, 5}, 1.0);
  EXPECT_EQ(empty.losses.numel(), 0);
  EXPECT_EQ(sum_in_order(empty.losses), 0.0);
}

TEST_P(VocabularyOps, CrossEntropyMaximumOfAnEmptySliceIsMinusInfinity) {
  for (const double value : values_of(cross_entropy_maximum(random_tensor({3, 0}, 1, type()))))
    EXPECT_EQ(value, -std::numeric_limits<double>::infinity());
}

TEST_P(VocabularyOps, CrossEntropyPropagatesNaN) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const std::size_t place : {0u, 7u, 39u}) {
    Values row = random_values(40, 1);
    row[place] = nan;
    const at::Tensor logits = tensor_of(row, {1, 40}, type());
    EXPECT_TRUE(std::isnan(values_of(cross_entropy_maximum(logits))[0]));
    EXPECT_TRUE(std::isnan(values_of(cross_entropy(logits, ids({3}), {0, 40}, 1.0).losses)[0]));
  }
}

TEST(CrossEntropy, RejectsInvalidTargets) {
  const at::Tensor logits = random_tensor({1, 4}, 1, at::kFloat);
  EXPECT_THROW(cross_entropy(logits, ids_tensor({-2}), {0, 4}, 1.0), Error);
  EXPECT_THROW(cross_entropy(logits, ids_tensor({1, 2}), {0, 4}, 1.0), Error);
}

TEST(CrossEntropyGradient, EqualsFiniteDifferences) {
  at::Tensor logits = random_tensor({3, 6}, 1, at::kDouble, 3.0);
  const at::Tensor targets = ids_tensor({5, -1, 2});
  const auto loss = [&] { return 0.5 * sum_in_order(cross_entropy(logits, targets, {0, 4, 6}, 0).losses); };
  const Values gradient = values_of(cross_entropy(logits, targets, {0, 4, 6}, 0.5).gradient);
  expect_near(gradient, numeric_gradient(logits, loss), [](std::size_t) { return 1e-8; });
}

TEST_P(VocabularyOps, LossesAreSummedInChunksOf1024) {
  const at::Tensor losses = random_tensor({2500}, 1, accumulator(type()));
  const Values values = values_of(losses);
  const auto rounded = [&](double sum) {  // The fp64 sum of two fp32 numbers, rounded, equals their sum in fp32.
    return losses.scalar_type() == at::kFloat ? static_cast<double>(static_cast<float>(sum)) : sum;
  };
  double total = 0;
  for (std::size_t start = 0; start < values.size(); start += 1024) {
    double chunk = 0;
    for (std::size_t i = start; i < std::min<std::size_t>(start + 1024, values.size()); ++i)
      chunk = rounded(chunk + values[i]);
    total = rounded(total + chunk);
  }
  EXPECT_EQ(sum_in_order(losses), total);
  EXPECT_EQ(values_of(sum_on_device(losses))[0], total);
}

// ---- Embedding

TEST_P(VocabularyOps, EmbeddingReadsRowsOfTheSlice) {
  const at::Tensor weight = random_tensor({5, 3}, 1, type());
  const std::vector<std::int64_t> tokens = {7, 9, 11, 12, 0, 7};  // the slice holds the ids 7 to 11
  const Values got = values_of(embedding_forward(ids(tokens), weight, one_range(7, 5))), table = values_of(weight);
  for (std::size_t token = 0; token < tokens.size(); ++token)
    for (std::size_t i = 0; i < 3; ++i) {
      const bool local = tokens[token] >= 7 && tokens[token] < 12;
      EXPECT_EQ(got[token * 3 + i], local ? table[static_cast<std::size_t>(tokens[token] - 7) * 3 + i] : 0.0);
    }
}

TEST_P(VocabularyOps, EmbeddingGradientAddsRowsInTokenOrder) {
  const std::vector<std::int64_t> tokens = {3, 4, 3, 9, 3, 4};
  const at::Tensor dy = random_tensor({6, 5}, 1, type());
  const at::Tensor before = random_tensor({3, 5}, 2, accumulator(type()));  // the slice holds the ids 2 to 4
  for (const bool accumulate : {false, true}) {
    at::Tensor expected = before.clone();
    if (!accumulate) expected.zero_();
    for (std::size_t token = 0; token < tokens.size(); ++token)
      if (tokens[token] < 5)
        expected.narrow(0, tokens[token] - 2, 1)
            .add_(dy.narrow(0, static_cast<std::int64_t>(token), 1).to(before.scalar_type()));
    at::Tensor got = before.clone();
    embedding_backward(dy, ids(tokens), got, one_range(2, 3), accumulate);
    EXPECT_TRUE(same_bits(got, expected));
  }
}

// Rows 0 and 1 are ids 7 and 8, row 2 is id 0, and rows 3 to 5 are ids 3 to 5.
TEST_P(VocabularyOps, EmbeddingOfRangesReadsAndAddsTheRowsOfTheirIds) {
  const IdRanges part = ids_of({{7, 9}, {0, 1}, {3, 6}});
  const auto row_of = [](std::int64_t id) -> std::int64_t {
    return id >= 7 && id < 9 ? id - 7 : id == 0 ? 2 : id >= 3 && id < 6 ? 3 + id - 3 : -1;
  };
  const std::vector<std::int64_t> tokens = {7, 9, 0, 5, 6, 2, 0, 3, 8, 7, 1};
  const std::size_t hidden = 3;
  const at::Tensor weight = random_tensor({6, 3}, 1, type()), dy = random_tensor({11, 3}, 2, type());
  const Values got = values_of(embedding_forward(ids(tokens), weight, part)), table = values_of(weight);
  at::Tensor expected = random_tensor({6, 3}, 3, accumulator(type()));
  at::Tensor dweight = expected.clone();
  for (std::size_t token = 0; token < tokens.size(); ++token) {
    const std::int64_t row = row_of(tokens[token]);
    for (std::size_t i = 0; i < hidden; ++i)
      EXPECT_EQ(got[token * hidden + i], row < 0 ? 0.0 : table[static_cast<std::size_t>(row) * hidden + i]);
    if (row >= 0)
      expected.narrow(0, row, 1).add_(dy.narrow(0, static_cast<std::int64_t>(token), 1).to(expected.scalar_type()));
  }
  embedding_backward(dy, ids(tokens), dweight, part, true);
  EXPECT_TRUE(same_bits(dweight, expected));
}

TEST_P(VocabularyOps, EmbeddingOfEmptyInputsIsEmpty) {
  const at::Tensor weight = random_tensor({0, 4}, 1, type());
  for (const double value : values_of(embedding_forward(ids({1, 2}), weight, {}))) EXPECT_EQ(value, 0.0);
  EXPECT_EQ(embedding_forward(ids({}), random_tensor({3, 4}, 1, type()), one_range(0, 3)).numel(), 0);
  at::Tensor dweight = random_tensor({0, 4}, 1, accumulator(type()));
  embedding_backward(random_tensor({2, 4}, 2, type()), ids({1, 2}), dweight, {}, false);
}

TEST(Embedding, RejectsMismatchedGradients) {
  at::Tensor dweight = random_tensor({4, 3}, 1, at::kFloat);
  EXPECT_THROW(
      embedding_backward(random_tensor({2, 5}, 2, at::kFloat), ids_tensor({0, 1}), dweight, one_range(0, 4), false),
      Error);
  EXPECT_THROW(
      embedding_backward(random_tensor({2, 3}, 2, at::kFloat), ids_tensor({0}), dweight, one_range(0, 4), false),
      Error);
  EXPECT_THROW(
      embedding_backward(random_tensor({2, 3}, 2, at::kDouble), ids_tensor({0, 1}), dweight, one_range(0, 4), false),
      Error);
}

TEST(Embedding, RejectsAPartWithAnotherNumberOfRows) {
  at::Tensor table = random_tensor({4, 3}, 1, at::kFloat);
  EXPECT_THROW(embedding_forward(ids_tensor({0}), table, one_range(0, 3)), Error);
  EXPECT_THROW(embedding_backward(random_tensor({1, 3}, 2, at::kFloat), ids_tensor({0}), table, one_range(0, 5), true),
               Error);
  EXPECT_THROW(cross_entropy_sums(table, random_tensor({4}, 1, at::kFloat), ids_tensor({0, 1, 2, 0}), one_range(0, 2)),
               Error);
}

TEST(IdRangesOfAPart, MapEachIdToItsRow) {
  IdRanges ids;
  EXPECT_EQ(ids.rows(), 0);
  EXPECT_EQ(ids.row_of(0), -1);
  ids.add(10, 3);
  ids.add(50, 0);  // adds an empty range
  ids.add(2, 4);
  EXPECT_EQ(ids.count, 2);
  EXPECT_EQ(ids.rows(), 7);
  for (std::int64_t id = -3; id < 20; ++id)
    EXPECT_EQ(ids.row_of(id), id >= 10 && id < 13 ? id - 10 : id >= 2 && id < 6 ? 3 + id - 2 : -1) << id;
}

TEST(IdRangesOfAPart, HaveAtMostEightRanges) {
  IdRanges ids;
  for (std::int64_t i = 0; i < IdRanges::kMaxRanges; ++i) ids.add(10 * i, 1);
  EXPECT_EQ(ids.row_of(70), 7);
  EXPECT_THROW(ids.add(100, 1), Error);
  EXPECT_THROW(one_range(-1, 2), Error);
  EXPECT_THROW(one_range(1, -2), Error);
}

}  // namespace
}  // namespace tessera::ops::test
