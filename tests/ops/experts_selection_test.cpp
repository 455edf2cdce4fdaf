// Tests the rows of the local experts, and the movement of values between tokens and rows.
#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "tessera/base/error.h"
#include "tessera/ops/experts/permute.h"
#include "tests/ops/experts_values.h"

namespace tessera::ops::test {
namespace {

using testing::ElementsAre;

std::vector<std::int64_t> integers(const at::Tensor& tensor, std::int64_t count) {
  const auto* data = tensor.const_data_ptr<std::int64_t>();
  return {data, data + count};
}

// ---- select_rows

TEST(SelectRows, OrdersRowsByExpertThenBlockThenToken) {
  const at::Tensor choices = choices_tensor({2, 0, 1, 2, /* block 1 */ 2, 3, 0, 2}, 2);
  const Selection selection = select_rows(choices, {.first = 1, .count = 2, .all = 4}, 2);
  EXPECT_EQ(selection.room, 8);
  EXPECT_EQ(selection.expected, 4);
  EXPECT_EQ(selection.rows(), 5);
  EXPECT_THAT(integers(selection.tokens, 5), ElementsAre(1, 0, 1, 2, 3));
  EXPECT_THAT(integers(selection.slots, 5), ElementsAre(0, 0, 1, 0, 1));
  EXPECT_THAT(integers(selection.offsets, 5), ElementsAre(0, 1, 1, 3, 5));
  EXPECT_EQ(selection.rows_of(0), std::pair(std::int64_t{0}, std::int64_t{1}));
  EXPECT_EQ(selection.rows_of(1), std::pair(std::int64_t{1}, std::int64_t{5}));
}

TEST(SelectRows, EqualsTheDefinition) {
  for (const ExpertsCase& it : experts_cases())
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      SCOPED_TRACE(testing::Message() << it << ", seed " << seed);
      const at::Tensor choices = random_choices(it.tokens(), it.k, it.local.all, seed);
      const Selection selection = select_rows(choices, it.local, it.blocks);
      const std::vector<ReferenceRow> expected = reference_rows(choices, it.local, it.blocks), got = rows_of(selection);
      ASSERT_EQ(got.size(), expected.size());
      EXPECT_EQ(selection.rows(), static_cast<std::int64_t>(expected.size()));
      for (std::size_t row = 0; row < got.size(); ++row) {
        EXPECT_EQ(got[row].expert, expected[row].expert) << "row " << row;
        EXPECT_EQ(got[row].block, expected[row].block) << "row " << row;
        EXPECT_EQ(got[row].token, expected[row].token) << "row " << row;
        EXPECT_EQ(got[row].slot, expected[row].slot) << "row " << row;
      }
      EXPECT_EQ(selection.room, it.tokens() * std::min(it.k, it.local.count));
      EXPECT_LE(selection.rows(), selection.room);
      EXPECT_EQ(selection.tokens.size(0), selection.room);
      EXPECT_EQ(selection.slots.size(0), selection.room);
      EXPECT_EQ(selection.offsets.size(0), it.local.count * it.blocks + 1);
    }
}

TEST(SelectRows, FillsTheRoomIfAllChoicesAreLocal) {
  const Selection selection = select_rows(choices_tensor({5, 4, 4, 5, 5, 4}, 2), {.first = 4, .count = 2, .all = 9}, 3);
  EXPECT_EQ(selection.room, 6);
  EXPECT_EQ(selection.rows(), 6);
  EXPECT_THAT(integers(selection.tokens, 6), ElementsAre(0, 1, 2, 0, 1, 2));
}

TEST(SelectRows, RejectsChoicesOutsideTheExpertsAndUnequalBlocks) {
  const LocalExperts local{.first = 0, .count = 2, .all = 4};
  EXPECT_THROW(select_rows(choices_tensor({0, 4}, 2), local, 1), Error);
  EXPECT_THROW(select_rows(choices_tensor({-2, 0}, 2), local, 1), Error);
  EXPECT_THROW(select_rows(choices_tensor({0, 1, 2}, 1), local, 2), Error);
  EXPECT_THROW(select_rows(choices_tensor({0, 1, 2}, 1), local, 0), Error);
}

TEST(SelectRows, HasTheShapesOfARealRunInADryRun) {
  for (const ExpertsCase& it : experts_cases()) {
    SCOPED_TRACE(it);
    const Selection real = it.select(1);
    const at::Tensor choices = dry_tensor({it.tokens(), it.k}, at::kInt);
    Selection dry;
    EXPECT_EQ(work_of([&] { dry = select_rows(choices, it.local, it.blocks); }).size(), 1u);
    EXPECT_TRUE(is_dry(dry.tokens) && is_dry(dry.slots) && is_dry(dry.offsets));
    EXPECT_EQ(dry.tokens.sizes(), real.tokens.sizes());
    EXPECT_EQ(dry.slots.sizes(), real.slots.sizes());
    EXPECT_EQ(dry.offsets.sizes(), real.offsets.sizes());
    EXPECT_EQ(dry.room, real.room);
    EXPECT_EQ(dry.expected, real.expected);
    EXPECT_EQ(dry.local, it.local.count);
    EXPECT_EQ(dry.blocks, it.blocks);
  }
}

// ---- permute

class Permute : public KindTest {};
INSTANTIATE_TEST_SUITE_P(Kinds, Permute, testing::ValuesIn(cpu_kinds()), name_of_kind);

TEST_P(Permute, TakesTheRowOfEachToken) {
  for (const ExpertsCase& it : experts_cases()) {
    SCOPED_TRACE(it);
    const Selection selection = it.select(2);
    const at::Tensor x = random_tensor({it.tokens(), 5}, 3, type());
    const at::Tensor rows = take_rows(x, selection);
    EXPECT_EQ(rows.size(0), selection.room);
    const std::vector<ReferenceRow> expected = rows_of(selection);
    for (std::size_t row = 0; row < expected.size(); ++row)
      EXPECT_TRUE(same_bits(rows[static_cast<std::int64_t>(row)], x[expected[row].token])) << "row " << row;
  }
}

TEST_P(Permute, TakesAndPutsTheValueOfEachChoice) {
  for (const ExpertsCase& it : experts_cases()) {
    SCOPED_TRACE(it);
    const Selection selection = it.select(4);
    const at::Tensor values = random_tensor({it.tokens(), it.k}, 5, accumulator(type()));
    at::Tensor taken = take_choices(values, selection);
    ASSERT_EQ(taken.size(0), selection.room);
    at::Tensor expected = values.clone().zero_();
    const std::vector<ReferenceRow> rows = rows_of(selection);
    for (std::size_t row = 0; row < rows.size(); ++row) {
      const at::Tensor value = values[rows[row].token][rows[row].slot];
      EXPECT_TRUE(same_bits(taken[static_cast<std::int64_t>(row)], value)) << "row " << row;
      expected[rows[row].token][rows[row].slot].copy_(value);
    }
    taken.narrow(0, selection.rows(), selection.room - selection.rows()).fill_(std::nan(""));
    EXPECT_TRUE(same_bits(put_choices(taken, selection), expected));
  }
}

// A token has at most k rows. The error of a sum of k terms in any order is at most k u times the sum of magnitudes.
TEST_P(Permute, AddsTheRowsOfEachToken) {
  for (const ExpertsCase& it : experts_cases()) {
    SCOPED_TRACE(it);
    const Selection selection = it.select(6);
    const at::Tensor rows = random_rows(selection, 3, 7, type());
    const Values values = values_of(rows);
    Values sums(static_cast<std::size_t>(it.tokens() * 3)), magnitudes(sums.size());
    std::size_t row = 0;
    for (const ReferenceRow& source : rows_of(selection)) {
      for (std::size_t i = 0; i < 3; ++i) {
        const std::size_t to = static_cast<std::size_t>(source.token) * 3 + i;
        sums[to] += values[row * 3 + i];
        magnitudes[to] += std::abs(values[row * 3 + i]);
      }
      ++row;
    }
    const at::Tensor combined = combine_rows(rows, selection);
    EXPECT_EQ(combined.scalar_type(), GetParam().type);
    EXPECT_EQ(combined.sizes(), (at::IntArrayRef{it.tokens(), 3}));
    const double error = static_cast<double>(it.k) * (u() + roundoff(at::kDouble));
    expect_near(values_of(combined), sums,
                [&](std::size_t i) { return error * magnitudes[i] + once() * std::abs(sums[i]); });
  }
}

// The three numbers have one sum by ascending expert and another by descending expert.
TEST_P(Permute, AddsByAscendingExpertAndNotByChoice) {
  const double small = u();
  const Selection selection = select_rows(choices_tensor({2, 1, 0}, 3), {.first = 0, .count = 3, .all = 3}, 1);
  const at::Tensor rows = tensor_of({1, small, small}, {3, 1}, accumulator(type()));
  EXPECT_EQ(values_of(combine_rows(rows, selection))[0], 1.0);
  const at::Tensor reversed = tensor_of({small, small, 1}, {3, 1}, accumulator(type()));
  EXPECT_EQ(values_of(combine_rows(reversed, selection))[0], 1.0 + 2 * small);
}

TEST_P(Permute, RoundsSumsOnce) {
  const double half = roundoff(GetParam().type) / 2;  // lost if it is added to 1 in the model's type
  const Selection selection = select_rows(choices_tensor({0, 1, 2, 3, 4}, 5), {.first = 0, .count = 5, .all = 5}, 1);
  const at::Tensor rows = tensor_of({1, half, half, half, half}, {5, 1}, type());
  const bool is_wide = GetParam().type != at::kBFloat16;  // the accumulator is the model's type
  EXPECT_EQ(values_of(combine_rows(rows, selection))[0], is_wide ? 1.0 : 1.0 + 4 * half);
}

TEST_P(Permute, GivesPositiveZeroToTokensWithoutRowsAndToSumsOfNegativeZeros) {
  const Selection selection = select_rows(choices_tensor({0, 3, 1, 0}, 1), {.first = 0, .count = 2, .all = 4}, 2);
  const at::Tensor rows = random_rows(selection, 2, 8, type());
  used(rows, selection).fill_(-0.0);
  for (const double value : values_of(combine_rows(rows, selection))) {
    EXPECT_EQ(value, 0);
    EXPECT_FALSE(std::signbit(value));
  }
}

TEST_P(Permute, KeepsNaNInItsToken) {
  const ExpertsCase it = experts_cases()[0];
  const Selection selection = it.select(9);
  const at::Tensor x = random_tensor({it.tokens(), 4}, 10, type());
  const at::Tensor spoiled = x.clone();
  const std::int64_t token = rows_of(selection)[0].token;
  spoiled[token].fill_(std::nan(""));
  const at::Tensor before = combine_rows(take_rows(x, selection), selection);
  const at::Tensor after = combine_rows(take_rows(spoiled, selection), selection);
  for (std::int64_t other = 0; other < it.tokens(); ++other)
    EXPECT_EQ(same_bits(before[other], after[other]), other != token) << "token " << other;
}

TEST_P(Permute, RejectsOperandsOfOtherSizes) {
  const ExpertsCase it = experts_cases()[0];
  const Selection selection = it.select(11);
  const std::int64_t tokens = it.tokens(), room = selection.room;
  const at::TensorOptions wide = accumulator(type());
  EXPECT_THROW(take_rows(random_tensor({tokens - 1, 4}, 1, type()), selection), Error);
  EXPECT_THROW(combine_rows(random_tensor({room + 1, 4}, 1, type()), selection), Error);
  EXPECT_THROW(take_choices(random_tensor({tokens, it.k + 1}, 1, wide), selection), Error);
  EXPECT_THROW(take_choices(random_tensor({tokens - 1, it.k}, 1, wide), selection), Error);
  EXPECT_THROW(put_choices(random_tensor({room - 1}, 1, wide), selection), Error);
}

TEST_P(Permute, HasTheShapesOfARealRunInADryRun) {
  for (const ExpertsCase& it : experts_cases()) {
    SCOPED_TRACE(it);
    const Selection dry = select_rows(dry_tensor({it.tokens(), it.k}, at::kInt), it.local, it.blocks);
    const auto size = static_cast<std::int64_t>(c10::elementSize(GetParam().type));
    const std::vector<Work> work = work_of([&] {
      const at::Tensor rows = take_rows(dry_tensor({it.tokens(), 6}, type()), dry);
      EXPECT_EQ(rows.sizes(), (at::IntArrayRef{dry.room, 6}));
      EXPECT_EQ(combine_rows(rows, dry).sizes(), (at::IntArrayRef{it.tokens(), 6}));
      const at::Tensor taken = take_choices(dry_tensor({it.tokens(), it.k}, accumulator(type())), dry);
      EXPECT_EQ(taken.sizes(), (at::IntArrayRef{dry.room}));
      EXPECT_EQ(put_choices(taken, dry).sizes(), (at::IntArrayRef{it.tokens(), it.k}));
    });
    ASSERT_EQ(work.size(), 4u);
    EXPECT_EQ(work[0].bytes, static_cast<double>(2 * dry.expected * 6 * size));
    EXPECT_EQ(work[1].bytes, static_cast<double>((it.tokens() + dry.expected) * 6 * size));
  }
}

}  // namespace
}  // namespace tessera::ops::test
