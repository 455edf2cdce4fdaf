// Simulated ranks that each cast a slice of every weight with reduced amaxes. Together they must hold the bytes of
// weights that one rank quantizes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <memory>
#include <random>

#include "tessera/base/error.h"
#include "tessera/quant/masters/master_cast.h"
#include "tests/quant/matrices.h"
#include "tests/quant/slices.h"

namespace tessera::quant {
namespace {

struct Weight {
  Encoding encoding;
  Extent matrix;
  std::vector<float> master;
  std::vector<Slice> slices, tiles;  // index: rank
};

// The data that a rank stores of one weight, with guard bytes around it.
struct Part {
  Part(const Weight& weight, std::size_t rank, std::mt19937& random)
      : data(weight.encoding.element, weight.slices[rank], random),
        scales(weight.encoding.scale == Scale::fp32 ? 32 : 8, weight.tiles[rank], random) {}
  GuardedBits data, scales;
  float tensor_amax = -1, not_finite = -1;
};

class Rank {
 public:
  Rank(const std::vector<Weight>& weights, std::size_t rank, std::mt19937& random) {
    std::vector<MasterSlice> slices;
    for (const Weight& weight : weights) {
      parts_.push_back(std::make_unique<Part>(weight, rank, random));
      Part& part = *parts_.back();
      slices.push_back({.source = source_from(weight.master, weight.slices[rank]),
                        .matrix = weight.matrix,
                        .encoding = weight.encoding,
                        .slice = weight.slices[rank],
                        .data = part.data.data(),
                        .tiles = weight.tiles[rank],
                        .scales = part.scales.data(),
                        .tensor_amax = &part.tensor_amax,
                        .not_finite = &part.not_finite});
    }
    cast_ = make_host_master_cast(slices);
  }
  MasterCast& cast() { return *cast_; }
  const Part& part(std::size_t weight) const { return *parts_[weight]; }

 private:
  std::vector<std::unique_ptr<Part>> parts_;
  std::unique_ptr<MasterCast> cast_;
};

// The weights must outlive the ranks.
std::vector<Rank> make_ranks(const std::vector<Weight>& weights, std::size_t count, std::mt19937& random) {
  std::vector<Rank> ranks;
  for (std::size_t rank = 0; rank < count; ++rank) ranks.emplace_back(weights, rank, random);
  return ranks;
}

// Imitates the all-reduce with MAX of the amaxes from index `first` on.
void reduce_amaxes(std::vector<Rank>& ranks, std::int64_t first) {
  const std::int64_t count = ranks[0].cast().amax_count();
  for (std::int64_t i = first; i < count; ++i) {
    float greatest = 0;
    for (Rank& rank : ranks) greatest = std::max(greatest, rank.cast().amaxes()[i]);
    for (Rank& rank : ranks) rank.cast().amaxes()[i] = greatest;
  }
}

void expect_whole(const std::vector<Weight>& weights, const std::vector<Rank>& ranks) {
  for (std::size_t w = 0; w < weights.size(); ++w) {
    const Weight& weight = weights[w];
    Stored got = room_for(weight.encoding, weight.matrix);
    const Stored expected = quantized(weight.master, weight.matrix, weight.encoding);
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      const Rank& rank = ranks[r];
      EXPECT_TRUE(is_mark_of(rank.part(w).not_finite, weight.master, weight.slices[r])) << "mark of weight " << w;
      EXPECT_TRUE(rank.part(w).data.is_kept()) << "data of weight " << w;
      EXPECT_TRUE(rank.part(w).scales.is_kept()) << "scales of weight " << w;
      rank.part(w).data.merge_into(got.data);
      rank.part(w).scales.merge_into(got.scales);
      EXPECT_EQ(rank.part(w).tensor_amax, expected.tensor_amax);
    }
    EXPECT_EQ(got.data, expected.data) << "weight " << w;
    EXPECT_EQ(got.scales, expected.scales) << "weight " << w;
  }
}

Weight make_weight(const Encoding& encoding, Extent matrix, unsigned seed) {
  return {.encoding = encoding, .matrix = matrix, .master = random_values(matrix.elements(), seed)};
}

// One weight of each encoding and an empty weight, divided at random.
std::vector<Weight> weights_cut_anywhere(int ranks, std::mt19937& random) {
  std::vector<Weight> weights;
  for (const NamedEncoding& named : all_encodings()) {
    const std::int64_t rows = 1 + static_cast<std::int64_t>(random() % 150), cols = random() % 2 == 0 ? 288 : 80;
    weights.push_back(make_weight(named.encoding, {rows, cols}, static_cast<unsigned>(random())));
  }
  weights.push_back(make_weight(all_encodings().back().encoding, {0, 80}, 0));
  for (Weight& weight : weights) {
    weight.slices = random_slices(weight.matrix.elements(), ranks, random);
    weight.tiles = random_slices(scale_extent(weight.encoding, weight.matrix).elements(), ranks, random);
  }
  return weights;
}

TEST(HostMasterCast, ArbitrarySlicesGiveTheBytesOfTheWholeWeight) {
  std::mt19937 random(41);
  for (int ranks = 1; ranks <= 8; ++ranks)
    for (int repeat = 0; repeat < 3; ++repeat) {
      const std::vector<Weight> weights = weights_cut_anywhere(ranks, random);
      std::vector<Rank> all = make_ranks(weights, static_cast<std::size_t>(ranks), random);
      for (Rank& rank : all) rank.cast().compute_amaxes();
      reduce_amaxes(all, 0);
      for (Rank& rank : all) rank.cast().cast();
      expect_whole(weights, all);
    }
}

// The elements that codes and amaxes may hide, and the two floats around the smallest float that bf16 rounds to
// infinity.
TEST(HostMasterCast, MarksSlicesWhileTheyAreNotFinite) {
  std::mt19937 random(43);
  for (const float special : {INFINITY, -INFINITY, NAN, -NAN, FLT_MAX, 3e38F, 0x1.FEFFFEp127F, 0x1.FFp127F})
    for (int ranks = 1; ranks <= 3; ++ranks) {
      std::vector<Weight> weights = weights_cut_anywhere(ranks, random);
      const std::vector<Weight> finite = weights;
      std::vector<Rank> all = make_ranks(weights, static_cast<std::size_t>(ranks), random);
      for (Weight& weight : weights)
        if (!weight.master.empty()) weight.master[random() % weight.master.size()] = special;
      for (const bool again : {false, true}) {
        if (again)
          for (std::size_t w = 0; w < weights.size(); ++w)
            std::ranges::copy(finite[w].master, weights[w].master.begin());
        for (Rank& rank : all) rank.cast().compute_amaxes();
        reduce_amaxes(all, 0);
        for (Rank& rank : all) rank.cast().cast();
        expect_whole(weights, all);
      }
    }
}

// If slices end between rows of tiles, no tile is shared by two ranks. Only the amaxes of whole matrices are reduced.
TEST(HostMasterCast, SlicesOfWholeTileRowsNeedOnlyTheMatrixAmaxes) {
  std::mt19937 random(42);
  for (int ranks = 1; ranks <= 8; ++ranks) {
    std::vector<Weight> weights = weights_cut_anywhere(ranks, random);
    for (Weight& weight : weights) {
      const Extent tiles = scale_extent(weight.encoding, weight.matrix);
      const std::int64_t tile_rows = weight.encoding.tile.rows == 0 ? 1 : weight.encoding.tile.rows;
      const std::int64_t bands = (weight.matrix.rows + tile_rows - 1) / tile_rows;
      const std::vector<Slice> cut = random_slices(bands, ranks, random);
      for (std::size_t rank = 0; rank < cut.size(); ++rank) {
        const auto element = [&](std::int64_t band) {
          return std::min(band * tile_rows, weight.matrix.rows) * weight.matrix.cols;
        };
        weight.slices[rank] = {element(cut[rank].begin), element(cut[rank].end)};
        if (weight.encoding.tile.rows != 0)
          weight.tiles[rank] = {cut[rank].begin * tiles.cols, cut[rank].end * tiles.cols};
      }
    }
    std::vector<Rank> all = make_ranks(weights, static_cast<std::size_t>(ranks), random);
    for (Rank& rank : all) rank.cast().compute_amaxes();
    reduce_amaxes(all, all[0].cast().tensor_amaxes() - all[0].cast().amaxes());
    for (Rank& rank : all) rank.cast().cast();
    expect_whole(weights, all);
  }
}

TEST(HostMasterCast, ReadsTheMastersAtEachCallAndDiscardsOldAmaxes) {
  std::mt19937 random(43);
  std::vector<Weight> weights = weights_cut_anywhere(2, random);
  std::vector<Rank> ranks = make_ranks(weights, 2, random);
  for (const float factor : {1.0F, 0.01F}) {
    for (Weight& weight : weights)
      for (float& value : weight.master) value *= factor;
    for (Rank& rank : ranks) rank.cast().compute_amaxes();
    reduce_amaxes(ranks, 0);
    for (Rank& rank : ranks) rank.cast().cast();
    expect_whole(weights, ranks);
  }
}

TEST(HostMasterCast, AmaxesAreZeroForTilesWithoutElementsOnTheRank) {
  const Encoding encoding{Element::e2m1, Scale::e4m3, {16, 16}};
  Weight weight = make_weight(encoding, {32, 32}, 5);
  weight.slices = {{0, 512}, {512, 512}};
  weight.tiles = {{0, 4}, {4, 4}};
  std::mt19937 random(44);
  const std::vector<Weight> weights{weight, weight};
  std::vector<Rank> ranks = make_ranks(weights, 2, random);
  EXPECT_EQ(ranks[0].cast().amax_count(), 4 + 4 + 2);
  EXPECT_EQ(ranks[0].cast().numbers(), 2);
  EXPECT_EQ(ranks[0].cast().tensor_amaxes(), ranks[0].cast().amaxes() + 8);
  for (Rank& rank : ranks) {
    std::fill_n(rank.cast().amaxes(), 10, 1e9F);
    rank.cast().compute_amaxes();
  }
  const float* first = ranks[0].cast().amaxes();
  const float* second = ranks[1].cast().amaxes();
  EXPECT_GT(first[0], 0);
  EXPECT_EQ(first[2], 0);
  EXPECT_EQ(first[8], std::max(first[0], first[1]));
  EXPECT_EQ(first[9], first[8]);
  EXPECT_EQ(std::count(second, second + 10, 0.0F), 10);
}

TEST(HostMasterCast, WithoutWeightsDoesNothing) {
  const std::unique_ptr<MasterCast> cast = make_host_master_cast({});
  EXPECT_EQ(cast->amax_count(), 0);
  cast->compute_amaxes();
  cast->cast();
}

TEST(HostMasterCast, RejectsSlicesOutsideTheMatrix) {
  const Encoding encoding{Element::e2m1, Scale::e4m3, {16, 16}};
  const auto make = [&](Extent matrix, Slice slice, Slice tiles) {
    const MasterSlice master{.matrix = matrix, .encoding = encoding, .slice = slice, .tiles = tiles};
    make_host_master_cast({&master, 1});
  };
  const std::int64_t elements = Extent{17, 80}.elements();
  EXPECT_NO_THROW(make({17, 80}, {0, elements}, {0, 10}));
  EXPECT_THROW(make({17, 81}, {0, 1}, {0, 1}), Error);
  EXPECT_THROW(make({17, 80}, {0, elements + 1}, {0, 1}), Error);
  EXPECT_THROW(make({17, 80}, {-1, 1}, {0, 1}), Error);
  EXPECT_THROW(make({17, 80}, {2, 1}, {0, 1}), Error);
  EXPECT_THROW(make({17, 80}, {0, 1}, {0, 11}), Error);
}

}  // namespace
}  // namespace tessera::quant
