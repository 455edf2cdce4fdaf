// Ranks that cast parts of stacks of matrices. Each matrix must have the bytes of a matrix that is quantized alone, and
// the ranks exchange only the amaxes of whole matrices.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/quant/masters/master_cast.h"
#include "tests/quant/slices.h"
#include "tests/quant/stacks.h"

namespace tessera::quant {
namespace {

// The rows that a rank stores of one matrix: its elements, and the tiles of these elements.
struct Rows {
  Slice elements, tiles;
};
// The index is the number of the matrix in the stack.
using RowsOfStack = std::vector<Rows>;

int bits_of(Element element) {
  return element == Element::e2m1 ? 4 : 8;
}
int bits_of(Scale scale) {
  return scale == Scale::fp32 ? 32 : 8;
}

// Divides a matrix at random between rows of tiles. Some ranks get no rows. Every rank stores the scale of a matrix
// that is one tile.
std::vector<Rows> random_rows(const Stack& stack, int ranks, std::mt19937& random) {
  const Extent tiles = scale_extent(stack.encoding, stack.matrix);
  const bool is_one_tile = stack.encoding.tile.rows == 0;
  const std::int64_t tile_rows = is_one_tile ? 1 : stack.encoding.tile.rows;
  const auto element = [&](std::int64_t band) {
    return std::min(band * tile_rows, stack.matrix.rows) * stack.matrix.cols;
  };
  std::vector<Rows> result;
  for (const Slice& cut : random_slices((stack.matrix.rows + tile_rows - 1) / tile_rows, ranks, random))
    result.push_back({.elements = {element(cut.begin), element(cut.end)},
                      .tiles = is_one_tile ? Slice{0, 1} : Slice{cut.begin * tiles.cols, cut.end * tiles.cols}});
  return result;
}

// A rank's arrays of one stack. They have the size of the whole stack, so that tests detect writes outside the rows.
struct StackParts {
  StackParts(const Stack& stack, base::Device device)
      : masters(stack.masters, 0, device),
        codes(data_bytes(stack.encoding.element, stack.count * stack.matrix.elements()), 0, device),
        scales(stack.count * scale_extent(stack.encoding, stack.matrix).elements() * bits_of(stack.encoding.scale) / 8,
               0, device),
        tensor_amaxes(std::vector<float>(static_cast<std::size_t>(stack.count), -1.0F), 0, device),
        not_finite(std::vector<float>{-1}, 0, device) {}

  MasterSlice slice_of(const Stack& stack, std::int64_t matrix, const Rows& rows, std::int64_t number) {
    const std::int64_t first = matrix * stack.matrix.elements() + rows.elements.begin;
    const std::int64_t first_tile = matrix * scale_extent(stack.encoding, stack.matrix).elements() + rows.tiles.begin;
    return {.source = {.data = masters.data() + first, .type = DType::fp32},
            .matrix = stack.matrix,
            .encoding = stack.encoding,
            .slice = rows.elements,
            .data = codes.data() + first * bits_of(stack.encoding.element) / 8,
            .tiles = rows.tiles,
            .scales = scales.data() + first_tile * bits_of(stack.encoding.scale) / 8,
            .tensor_amax = tensor_amaxes.data() + matrix,
            .not_finite = not_finite.data(),
            .number = number};
  }

  DeviceArray<float> masters;
  DeviceArray<std::uint8_t> codes, scales;
  DeviceArray<float> tensor_amaxes, not_finite;  // all matrices share not_finite
};

// A rank with parts of all stacks. The numbers of a stack's matrices follow those of the stack before.
class StackRank {
 public:
  StackRank(const std::vector<Stack>& stacks, std::vector<RowsOfStack> rows, base::Device device)
      : stacks_(stacks), rows_(std::move(rows)) {
    std::vector<MasterSlice> slices;
    std::int64_t numbers = 0;
    for (std::size_t s = 0; s < stacks.size(); ++s) {
      parts_.push_back(std::make_unique<StackParts>(stacks[s], device));
      for (std::int64_t matrix = 0; matrix < stacks[s].count; ++matrix)
        if (is_here(s, matrix))
          slices.push_back(parts_[s]->slice_of(stacks[s], matrix, rows_of(s, matrix), numbers + matrix));
      numbers += stacks[s].count;
    }
    cast_ = make_master_cast(slices, device, nullptr, numbers);
  }

  MasterCast& cast() { return *cast_; }
  StackParts& parts(std::size_t s) { return *parts_[s]; }
  void expect_matrices_alone();

  std::vector<float> tensor_amaxes() {
    std::vector<float> amaxes(static_cast<std::size_t>(cast_->numbers()));
    base::copy_bytes(amaxes.data(), cast_->tensor_amaxes(), amaxes.size() * sizeof(float));
    return amaxes;
  }

 private:
  const Rows& rows_of(std::size_t s, std::int64_t matrix) const { return rows_[s][static_cast<std::size_t>(matrix)]; }
  // Returns false for matrices of which the rank has neither rows nor the amax.
  bool is_here(std::size_t s, std::int64_t matrix) const { return rows_of(s, matrix).elements.begin >= 0; }

  const std::vector<Stack>& stacks_;
  std::vector<RowsOfStack> rows_;
  std::vector<std::unique_ptr<StackParts>> parts_;
  std::unique_ptr<MasterCast> cast_;
};

void StackRank::expect_matrices_alone() {
  for (std::size_t s = 0; s < stacks_.size(); ++s) {
    const Stack& stack = stacks_[s];
    std::vector<std::uint8_t> codes, scales;
    std::vector<float> amaxes;
    bool finite = true;
    for (std::int64_t matrix = 0; matrix < stack.count; ++matrix) {
      Stored expected = room_for(stack.encoding, stack.matrix);
      expected.tensor_amax = -1;
      if (is_here(s, matrix)) {
        const Rows& rows = rows_of(s, matrix);
        const Stored alone = stack.quantized_alone(matrix);
        copy_items(alone.data, rows.elements, bits_of(stack.encoding.element), expected.data);
        copy_items(alone.scales, rows.tiles, bits_of(stack.encoding.scale), expected.scales);
        expected.tensor_amax = alone.tensor_amax;
        finite = finite && is_mark_of(0, stack.master(matrix), rows.elements);
      }
      codes.insert(codes.end(), expected.data.begin(), expected.data.end());
      scales.insert(scales.end(), expected.scales.begin(), expected.scales.end());
      amaxes.push_back(expected.tensor_amax);
    }
    EXPECT_TRUE(same_bytes(parts_[s]->codes.values(), codes)) << "codes of stack " << s;
    EXPECT_TRUE(same_bytes(parts_[s]->scales.values(), scales)) << "scales of stack " << s;
    EXPECT_EQ(parts_[s]->tensor_amaxes.values(), amaxes) << "stack " << s;
    const float mark = parts_[s]->not_finite.values()[0];
    const bool has_slices = std::ranges::any_of(amaxes, [](float amax) { return amax >= 0; });
    EXPECT_TRUE(!has_slices ? mark == -1 : finite ? mark == 0 : std::isnan(mark)) << "mark of stack " << s << mark;
  }
}

// Computes the amaxes, imitates the all-reduce with MAX of the amaxes of whole matrices, and casts.
void cast_all(std::vector<std::unique_ptr<StackRank>>& ranks) {
  std::vector<float> greatest(static_cast<std::size_t>(ranks[0]->cast().numbers()));
  for (const auto& rank : ranks) {
    rank->cast().compute_amaxes();
    const std::vector<float> own = rank->tensor_amaxes();
    ASSERT_EQ(own.size(), greatest.size());
    for (std::size_t i = 0; i < own.size(); ++i) greatest[i] = std::max(greatest[i], own[i]);
  }
  for (const auto& rank : ranks) {
    base::copy_bytes(rank->cast().tensor_amaxes(), greatest.data(), greatest.size() * sizeof(float));
    rank->cast().cast();
  }
}

class StackCast : public OnBothDevices {
 protected:
  // The ranks form pairs. Each pair has some of the matrices of a stack, and divides the rows of these matrices.
  static std::vector<std::unique_ptr<StackRank>> random_ranks(const std::vector<Stack>& stacks, int pairs,
                                                              std::mt19937& random) {
    std::vector<std::vector<RowsOfStack>> rows(2 * static_cast<std::size_t>(pairs));
    for (const Stack& stack : stacks) {
      const std::vector<Slice> owned = random_slices(stack.count, pairs, random);
      for (auto& of_rank : rows)
        of_rank.emplace_back(static_cast<std::size_t>(stack.count), Rows{.elements = {-1, -1}});
      for (std::size_t pair = 0; pair < owned.size(); ++pair)
        for (std::int64_t matrix = owned[pair].begin; matrix < owned[pair].end; ++matrix) {
          const std::vector<Rows> cut = random_rows(stack, 2, random);
          for (const std::size_t half : {0, 1})
            rows[2 * pair + half].back()[static_cast<std::size_t>(matrix)] = cut[half];
        }
    }
    std::vector<std::unique_ptr<StackRank>> ranks;
    for (auto& of_rank : rows) ranks.push_back(std::make_unique<StackRank>(stacks, of_rank, GetParam()));
    return ranks;
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, StackCast, testing::Values(base::Device{}, kTestDevice), name_of_device);

TEST_P(StackCast, EachMatrixHasTheBytesOfAMatrixAlone) {
  std::mt19937 random(74);
  for (const int pairs : {1, 2, 3}) {
    std::vector<Stack> stacks;
    for (const NamedEncoding& named : all_encodings())
      for (const std::int64_t count : {1, 7, 0})
        stacks.push_back(random_stack(named.encoding, random_extent(random), count, random));
    stacks.push_back(random_stack(all_encodings()[7].encoding, {2, 2}, 128, random));
    stacks.push_back(random_stack(all_encodings()[0].encoding, {2, 2}, 128, random));
    auto ranks = random_ranks(stacks, pairs, random);
    cast_all(ranks);
    for (const auto& rank : ranks) rank->expect_matrices_alone();
  }
}

// All matrices share one mark. A later finite matrix must not erase the NaN of an earlier matrix.
TEST_P(StackCast, TheSharedMarkIsZeroOnlyIfAllMatricesAreFinite) {
  std::mt19937 random(75);
  for (const NamedEncoding& named : all_encodings())
    for (const std::int64_t bad : {0, 2, 4})
      for (const float value : {NAN, INFINITY, 0x1.FFp127F}) {
        const Stack finite = random_stack(named.encoding, random_extent(random), 5, random);
        std::vector<Stack> stacks{finite};
        auto ranks = random_ranks(stacks, 1, random);
        const auto elements = static_cast<std::size_t>(finite.matrix.elements());
        stacks[0].masters[static_cast<std::size_t>(bad) * elements + random() % elements] = value;
        for (const bool again : {false, true}) {
          if (again) stacks[0].masters = finite.masters;
          for (const auto& rank : ranks) rank->parts(0).masters.set(stacks[0].masters);
          cast_all(ranks);
          float mark = 0;
          for (const auto& rank : ranks) {
            rank->expect_matrices_alone();
            mark += rank->parts(0).not_finite.values()[0];
          }
          EXPECT_TRUE(again ? mark == 0 : std::isnan(mark)) << named.name << ", matrix " << bad;
        }
      }
}

TEST_P(StackCast, AnEmptySliceGetsTheAmaxOfItsNumber) {
  for (const NamedEncoding& named : {all_encodings()[0], all_encodings()[7]}) {
    std::mt19937 random(76);
    const std::vector<Stack> stacks{random_stack(named.encoding, {16, 16}, 2, random)};
    const Slice none{.begin = 256, .end = 256}, tiles{0, named.encoding.tile.rows == 0 ? 1 : 0};
    StackRank rank(stacks, {{{.elements = none, .tiles = tiles}, {.elements = none, .tiles = tiles}}}, GetParam());
    rank.cast().compute_amaxes();
    EXPECT_EQ(rank.tensor_amaxes(), std::vector<float>(2));
    const std::vector<float> reduced{stacks[0].quantized_alone(0).tensor_amax,
                                     stacks[0].quantized_alone(1).tensor_amax};
    base::copy_bytes(rank.cast().tensor_amaxes(), reduced.data(), 2 * sizeof(float));
    rank.cast().cast();
    EXPECT_EQ(rank.parts(0).tensor_amaxes.values(), reduced);
    rank.expect_matrices_alone();
  }
}

TEST_P(StackCast, NumbersWithoutASliceAreZero) {
  std::mt19937 random(77);
  const Stack stack = random_stack(all_encodings()[7].encoding, {20, 40}, 2, random);
  StackParts parts(stack, GetParam());
  const Rows whole{.elements = {0, 800}, .tiles = {0, 6}};
  const MasterSlice slices[] = {parts.slice_of(stack, 0, whole, 4), parts.slice_of(stack, 1, whole, 1)};
  const auto cast = make_master_cast(slices, GetParam(), nullptr, 6);
  EXPECT_EQ(cast->numbers(), 6);
  EXPECT_EQ(cast->amax_count(), 6 + 6 + 6);
  EXPECT_EQ(cast->tensor_amaxes(), cast->amaxes() + 12);
  const std::vector<float> poison(18, 1e9F);
  base::copy_bytes(cast->amaxes(), poison.data(), 18 * sizeof(float));
  cast->compute_amaxes();
  std::vector<float> amaxes(6);
  base::copy_bytes(amaxes.data(), cast->tensor_amaxes(), 6 * sizeof(float));
  const float first = stack.quantized_alone(0).tensor_amax, second = stack.quantized_alone(1).tensor_amax;
  EXPECT_EQ(amaxes, (std::vector<float>{0, second, 0, 0, first, 0}));
}

TEST_P(StackCast, RejectsNumbersOutsideTheRangeAndEqualNumbers) {
  const auto make = [](std::int64_t first, std::int64_t second, std::int64_t numbers) {
    const MasterSlice slices[] = {{.number = first}, {.number = second}};
    make_master_cast(slices, GetParam(), nullptr, numbers);
  };
  EXPECT_NO_THROW(make(-1, -1, -1));
  EXPECT_NO_THROW(make(1, 0, -1));
  EXPECT_NO_THROW(make(7, 0, 8));
  EXPECT_THROW(make(0, 2, -1), Error);
  EXPECT_THROW(make(8, 0, 8), Error);
  EXPECT_THROW(make(-2, 0, 8), Error);
  EXPECT_THROW(make(-1, -1, 1), Error);
  EXPECT_THROW(make(3, 3, 8), Error);
  EXPECT_THROW(make(1, -1, 8), Error);  // the second slice has number 1 too
}

}  // namespace
}  // namespace tessera::quant
