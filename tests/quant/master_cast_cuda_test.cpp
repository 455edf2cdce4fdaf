// Compares MasterCast on a GPU with the quantization of whole weights on the host.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <random>

#include "tests/quant/device_ranks.h"
#include "tests/quant/slices.h"

namespace tessera::quant {
namespace {

// The amaxes of a cast by weight: first all tiles, then the whole weight. Each is the maximum over the weight's slices.
template <typename T>
void visit_amaxes(DeviceRank<T>& rank, const std::vector<DeviceWeight<T>>& weights, std::vector<float>& amaxes,
                  const std::function<void(std::size_t weight, std::size_t tile, float& amax)>& visit) {
  std::size_t at = 0, slice = 0;
  const std::size_t tensors = amaxes.size() - static_cast<std::size_t>(rank.cast().numbers());
  for (std::size_t w = 0; w < weights.size(); ++w) {
    const auto tiles = static_cast<std::size_t>(scale_extent(weights[w].encoding, weights[w].matrix).elements());
    for (std::size_t s = 0; s < rank.slices()[w].size(); ++s, ++slice) {
      for (std::size_t tile = 0; tile < tiles; ++tile) visit(w, tile, amaxes[at++]);
      visit(w, tiles, amaxes[tensors + slice]);
    }
  }
}

std::vector<float> amaxes_on_host(MasterCast& cast) {
  std::vector<float> amaxes(static_cast<std::size_t>(cast.amax_count()));
  base::copy_bytes(amaxes.data(), cast.amaxes(), amaxes.size() * sizeof(float));
  return amaxes;
}

// Imitates the all-reduce with MAX: combines amaxes over ranks, and over the slices of one weight on one rank.
template <typename T>
void reduce_on_host(std::vector<std::unique_ptr<DeviceRank<T>>>& ranks, const std::vector<DeviceWeight<T>>& weights) {
  std::map<std::pair<std::size_t, std::size_t>, float> greatest;
  for (auto& rank : ranks) {
    std::vector<float> amaxes = amaxes_on_host(rank->cast());
    visit_amaxes<T>(*rank, weights, amaxes, [&](std::size_t w, std::size_t tile, float& amax) {
      float& value = greatest[{w, tile}];
      value = std::max(value, amax);
    });
  }
  for (auto& rank : ranks) {
    std::vector<float> amaxes = amaxes_on_host(rank->cast());
    visit_amaxes<T>(*rank, weights, amaxes, [&](std::size_t w, std::size_t tile, float& amax) {
      amax = greatest[{w, tile}];
    });
    base::copy_bytes(rank->cast().amaxes(), amaxes.data(), amaxes.size() * sizeof(float));
  }
}

using Cut = std::function<std::vector<Slice>(const Extent& matrix)>;

// `count` ranks cast the slices of cut(matrix); slice i belongs to rank i % count.
template <typename T>
void check_ranks(const std::vector<DeviceWeight<T>>& weights, std::size_t count, std::size_t shift, const Cut& cut) {
  std::vector<std::vector<std::vector<Slice>>> slices(count, std::vector<std::vector<Slice>>(weights.size()));
  for (std::size_t w = 0; w < weights.size(); ++w) {
    const std::vector<Slice> cuts = cut(weights[w].matrix);
    for (std::size_t i = 0; i < cuts.size(); ++i) slices[i % count][w].push_back(cuts[i]);
  }
  std::vector<std::unique_ptr<DeviceRank<T>>> ranks;
  for (auto& of_rank : slices) ranks.push_back(std::make_unique<DeviceRank<T>>(weights, of_rank, shift));
  for (auto& rank : ranks) rank->cast().compute_amaxes();
  reduce_on_host(ranks, weights);
  for (auto& rank : ranks) rank->cast().cast();
  for (auto& rank : ranks) expect_slices_of_whole(*rank, weights);
}

class DeviceMasterCast : public OnDevice {
 protected:
  template <typename Check>
  static void for_both_types(Check check) {
    check(device_weights<float>(100));
    check(device_weights<bfloat16>(200));
  }
};

TEST_F(DeviceMasterCast, QuantizesWholeWeightsLikeTheHost) {
  for_both_types([](const auto& weights) {
    for (const std::size_t shift : {0, 1})
      check_ranks(weights, 1, shift, [](const Extent& matrix) { return std::vector<Slice>{{0, matrix.elements()}}; });
  });
}

// The slices of a rank share bytes and tiles with other slices of this rank and of other ranks. Some slices are empty.
TEST_F(DeviceMasterCast, ArbitrarySlicesGiveTheBytesOfTheWholeWeight) {
  std::mt19937 random(7);
  for_both_types([&](const auto& weights) {
    for (const std::size_t ranks : {1, 2, 3})
      check_ranks(weights, ranks, ranks % 2,
                  [&](const Extent& matrix) { return random_slices(matrix.elements(), 6, random); });
  });
}

// Divides the weights as the optimizer does by default.
TEST_F(DeviceMasterCast, SlicesOfWholeRowsGiveTheBytesOfTheWholeWeight) {
  for_both_types([](const auto& weights) {
    check_ranks(weights, 2, 0, [](const Extent& matrix) {
      const std::int64_t middle = std::min(matrix.rows, (matrix.rows / 2 + 127) / 128 * 128) * matrix.cols;
      return std::vector<Slice>{{0, middle}, {middle, matrix.elements()}};
    });
  });
}

TEST_F(DeviceMasterCast, ReadsTheMasterAtEachCall) {
  const std::vector<DeviceWeight<float>> before = device_weights<float>(300);
  std::vector<DeviceWeight<float>> after = before;
  std::vector<std::vector<Slice>> slices;
  for (const auto& weight : before) slices.push_back({{0, weight.matrix.elements()}});
  DeviceRank<float> rank(before, slices, 0);
  rank.cast().compute_amaxes();
  rank.cast().cast();
  for (std::size_t w = 0; w < after.size(); ++w) {
    for (float& value : after[w].master) value *= 0.37F;
    rank.parts(w).master.set(after[w].master);
  }
  rank.cast().compute_amaxes();
  rank.cast().cast();
  expect_slices_of_whole(rank, after);
}

// Greater amaxes of other ranks determine the scales. For a weight of one tile, the tile uses the amax of the whole
// weight.
TEST_F(DeviceMasterCast, UsesTheReducedAmaxes) {
  const Extent matrix{.rows = 40, .cols = 96};
  const std::vector<float> master = random_values(matrix.elements(), 3);
  for (const NamedEncoding& named : all_encodings()) {
    const std::vector<DeviceWeight<float>> weights{{named.encoding, matrix, master}};
    DeviceRank<float> rank(weights, {{{0, matrix.elements()}}}, 0);
    Stored expected = room_for(named.encoding, matrix);
    MasterSlice slice{.source = source_of(master),
                      .matrix = matrix,
                      .encoding = named.encoding,
                      .slice = {0, matrix.elements()},
                      .data = expected.data.data(),
                      .tiles = {0, scale_extent(named.encoding, matrix).elements()},
                      .scales = expected.scales.data()};
    const auto host = make_host_master_cast({&slice, 1});
    rank.cast().compute_amaxes();
    host->compute_amaxes();
    std::vector<float> amaxes = amaxes_on_host(rank.cast());
    ASSERT_EQ(amaxes, std::vector<float>(host->amaxes(), host->amaxes() + host->amax_count())) << named.name;
    for (std::size_t i = 0; i < amaxes.size(); ++i)
      amaxes[i] *= i + 1 == amaxes.size() ? 16 : static_cast<float>(1 + i % 3);
    std::copy(amaxes.begin(), amaxes.end(), host->amaxes());
    base::copy_bytes(rank.cast().amaxes(), amaxes.data(), amaxes.size() * sizeof(float));
    rank.cast().cast();
    host->cast();
    EXPECT_TRUE(same_bytes(rank.parts(0).codes.values(), expected.data)) << named.name;
    EXPECT_TRUE(same_bytes(rank.parts(0).scales.values(), expected.scales)) << named.name;
  }
}

}  // namespace
}  // namespace tessera::quant
