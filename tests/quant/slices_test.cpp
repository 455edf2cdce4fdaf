// A matrix that is quantized in arbitrary slices must have the bytes of the whole matrix.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <random>

#include "tests/quant/matrices.h"
#include "tests/quant/slices.h"

namespace tessera::quant {
namespace {

class Slices : public testing::TestWithParam<NamedEncoding> {
 protected:
  const Encoding& encoding() const { return GetParam().encoding; }
};
INSTANTIATE_TEST_SUITE_P(Encodings, Slices, testing::ValuesIn(all_encodings()), name_of_case);

// Quantizes slice by slice. Each slice has its own amaxes, which are then combined.
template <typename T>
Stored quantized_in_slices(const std::vector<T>& values, Extent matrix, const Encoding& encoding,
                           const std::vector<Slice>& slices, std::mt19937& random) {
  Stored stored = room_for(encoding, matrix);
  std::vector<float> amaxes(static_cast<std::size_t>(scale_extent(encoding, matrix).elements())), multipliers(amaxes);
  for (const Slice& slice : slices) {
    std::vector<float> own(amaxes.size());
    take_amaxes(source_from(values, slice), matrix, encoding.tile, slice, own);
    for (std::size_t tile = 0; tile < own.size(); ++tile) amaxes[tile] = std::max(amaxes[tile], own[tile]);
  }
  stored.tensor_amax = *std::max_element(amaxes.begin(), amaxes.end());
  make_scales(encoding, amaxes, stored.tensor_amax, multipliers, stored.scales.data());
  for (const Slice& slice : slices) {
    GuardedBits bytes(encoding.element, slice, random);
    cast(source_from(values, slice), matrix, encoding, slice, multipliers, bytes.data());
    EXPECT_TRUE(bytes.is_kept()) << "[" << slice.begin << ", " << slice.end << ")";
    bytes.merge_into(stored.data);
  }
  return stored;
}

TEST_P(Slices, GiveTheBytesOfTheWholeMatrix) {
  std::mt19937 random(11);
  for (const Extent matrix : {Extent{5, 2}, Extent{17, 80}, Extent{100, 288}, Extent{129, 688}, Extent{1, 16}}) {
    const std::vector<float> values = random_values(matrix.elements(), 1);
    const Stored whole = quantized(values, matrix, encoding());
    for (const int count : {1, 2, 3, 8, 30}) {
      const std::vector<Slice> slices = random_slices(matrix.elements(), count, random);
      EXPECT_EQ(quantized_in_slices(values, matrix, encoding(), slices, random), whole) << count << " slices";
      EXPECT_EQ(quantized_in_slices(rounded_values(values), matrix, encoding(), slices, random), whole);
    }
  }
}

// Tests every pair of a first and a last element in two rows of a small matrix.
TEST_P(Slices, MayBeginAndEndAnywhere) {
  const Extent matrix{.rows = 18, .cols = 18};
  const std::vector<float> values = random_values(matrix.elements(), 2);
  const Stored whole = quantized(values, matrix, encoding());
  std::mt19937 random(12);
  for (std::int64_t begin = 15 * 18; begin < 17 * 18; ++begin)
    for (std::int64_t end = begin; end < 17 * 18; end += 3) {
      const std::vector<Slice> slices{{0, begin}, {begin, end}, {end, matrix.elements()}};
      ASSERT_EQ(quantized_in_slices(values, matrix, encoding(), slices, random), whole) << begin << " to " << end;
    }
}

TEST_P(Slices, KeepTheGreaterOfTwoAmaxes) {
  const std::vector<float> values{3.0F, -5.0F};
  std::vector<float> amaxes(1, 4.0F);
  const Slice first{0, 1}, second{1, 2};
  take_amaxes(source_from(values, first), {1, 2}, encoding().tile, first, amaxes);
  if (encoding().tile.cols != 1) {
    EXPECT_EQ(amaxes[0], 4.0F);
    take_amaxes(source_from(values, second), {1, 2}, encoding().tile, second, amaxes);
    EXPECT_EQ(amaxes[0], 5.0F);
  }
}

TEST_P(Slices, TouchWholeRowsOfTiles) {
  const Extent matrix{.rows = 300, .cols = 300};
  std::mt19937 random(13);
  for (const Slice& slice : random_slices(matrix.elements(), 200, random)) {
    const Slice touched = touched_tiles(encoding().tile, matrix, slice);
    if (slice.size() == 0) {
      EXPECT_EQ(touched.size(), 0);
      continue;
    }
    const std::int64_t tiles_in_row = scale_extent(encoding(), matrix).cols;
    const auto row_of = [&](std::int64_t element) {
      return static_cast<std::int64_t>(definition::tile_of(element / 300, 0, matrix, encoding().tile)) / tiles_in_row;
    };
    EXPECT_EQ(touched.begin, row_of(slice.begin) * tiles_in_row);
    EXPECT_EQ(touched.end, (row_of(slice.end - 1) + 1) * tiles_in_row);
  }
}

// Quantizes elements [begin, begin + 3000) of a matrix of 2^34 elements and 16 tiles. Only these elements have memory.
// Tile `tile` ends before element `border`, where the next tile begins.
void expect_small_slice_of_huge_matrix(Element element, std::int64_t begin, std::int64_t border, std::size_t tile) {
  const Extent huge{.rows = std::int64_t{1} << 20, .cols = std::int64_t{1} << 14};
  const Scale scale = element == Element::e2m1 ? Scale::e4m3 : Scale::fp32;
  const Encoding encoding{element, scale, {std::int64_t{1} << 18, std::int64_t{1} << 12}};
  const Slice slice{begin, begin + 3000};
  std::vector<float> values = random_values(slice.size(), 9), amaxes(16), multipliers(16);
  for (std::int64_t i = begin; i < border; ++i) values[static_cast<std::size_t>(i - begin)] *= 0.1F;

  take_amaxes(source_of(values), huge, encoding.tile, slice, amaxes);
  EXPECT_EQ(std::count(amaxes.begin(), amaxes.end(), 0.0F), 14);
  EXPECT_LT(amaxes[tile], amaxes[tile + 1] / 5);
  make_scales(encoding, amaxes, *std::max_element(amaxes.begin(), amaxes.end()), multipliers, nullptr);
  std::mt19937 random(3);
  GuardedBits bytes(element, slice, random);
  cast(source_of(values), huge, encoding, slice, multipliers, bytes.data());
  EXPECT_TRUE(bytes.is_kept());
  for (std::int64_t i = begin; i < slice.end; ++i) {
    const double value = static_cast<float>(bfloat16(values[static_cast<std::size_t>(i - begin)]));
    const double multiplier = multipliers[i < border ? tile : tile + 1];
    ASSERT_EQ(bytes.item(i), definition::encode(element, definition::rounded(value * multiplier))) << i;
  }
}

TEST(HugeMatrix, GivesTheElementsOfASmallMatrixAtLargeOffsets) {
  const std::int64_t before_last_tile = (std::int64_t{1} << 34) - 4096, half = std::int64_t{1} << 33;
  for (const Element element : {Element::e4m3, Element::e2m1})
    for (const std::int64_t ahead : {1000, 999}) {
      expect_small_slice_of_huge_matrix(element, before_last_tile - ahead, before_last_tile, 14);
      expect_small_slice_of_huge_matrix(element, half - ahead, half, 7);  // bytes and elements cross multiples of 2^32
    }
}

TEST(HugeMatrix, SupportsTileNumbersAbove32Bits) {
  const Extent huge{.rows = std::int64_t{1} << 24, .cols = std::int64_t{1} << 16};
  const Slice slice{huge.elements() - 10, huge.elements()};
  const Slice touched = touched_tiles({.rows = 1, .cols = 16}, huge, slice);
  EXPECT_EQ(touched.end, std::int64_t{1} << 36);
  EXPECT_EQ(touched.size(), std::int64_t{1} << 12);
  EXPECT_EQ(scale_extent({.tile = {1, 16}}, huge).elements(), std::int64_t{1} << 36);
  EXPECT_EQ(data_bytes(Element::e2m1, huge.elements()), std::int64_t{1} << 39);
}

// Floats with reserved addresses that get memory only when they are written.
class SparseFloats {
 public:
  explicit SparseFloats(std::size_t count)
      : count_(count),
        data_(mmap(nullptr, count * sizeof(float), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0)) {}
  ~SparseFloats() {
    if (exists()) munmap(data_, count_ * sizeof(float));
  }
  SparseFloats(const SparseFloats&) = delete;
  SparseFloats& operator=(const SparseFloats&) = delete;
  bool exists() const { return data_ != MAP_FAILED; }
  std::span<float> all() const { return {static_cast<float*>(data_), count_}; }

 private:
  const std::size_t count_;
  void* const data_;
};

TEST(HugeMatrix, QuantizesItsEndWithMoreThan32BitsOfTiles) {
  const Extent huge{.rows = (std::int64_t{1} << 27) + 4, .cols = 256}, small{.rows = 2, .cols = 256};
  const Encoding encoding{Element::e2m1, Scale::e4m3, {1, 16}};
  const auto tiles = static_cast<std::size_t>(scale_extent(encoding, huge).elements());
  const SparseFloats amaxes(tiles), multipliers(tiles);
  if (!amaxes.exists() || !multipliers.exists()) GTEST_SKIP() << "no addresses for 16 GiB";
  const std::vector<float> values = random_values(small.elements(), 10);
  const Slice slice{huge.elements() - small.elements(), huge.elements()};
  take_amaxes(source_of(values), huge, encoding.tile, slice, amaxes.all());
  const auto last = amaxes.all().last(32);
  Stored got = room_for(encoding, small);
  got.tensor_amax = *std::max_element(last.begin(), last.end());
  make_scales(encoding, last, got.tensor_amax, multipliers.all().last(32), got.scales.data());
  cast(source_of(values), huge, encoding, slice, multipliers.all(), got.data.data());
  EXPECT_EQ(got, quantized(values, small, encoding));
}

}  // namespace
}  // namespace tessera::quant
