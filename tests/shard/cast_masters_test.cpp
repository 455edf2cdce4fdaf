// Tests that masters in slices over the ranks of a group are cast to the bytes of the whole weights, and that the cast
// data is gathered. Ranks are threads on the CPU; in test_comm_nccl each rank has one GPU.
#include "tessera/shard/formats/cast_masters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <random>

#include "tessera/base/error.h"
#include "tessera/base/lanes/cuda_lane.h"
#include "tessera/comm/local/world.h"
#include "tessera/shard/formats/quantized_gather.h"
#include "tests/comm/placed.h"
#include "tests/quant/matrices.h"

namespace tessera::shard {
namespace {

using quant::Extent;
using quant::Format;
using quant::Slice;

// Few sizes are multiples of a tile or of a kernel's vector. Two matrices have no elements.
const std::vector<Extent> kMatrices{{50, 288}, {37, 80}, {9, 16},    {33, 688}, {0, 32},
                                    {5, 290},  {11, 2},  {129, 144}, {1, 2},    {0, 0}};
constexpr std::uint8_t kUntouched = 0xA5;

std::unique_ptr<base::Lane> make_compute_lane() {
  const base::Device device = comm::device_of_tests();
  if (device.kind == base::DeviceKind::cuda) return base::make_cuda_lane("compute", device);
  return base::make_inline_lane();
}

std::vector<float> master_of(std::size_t weight, unsigned round) {
  return quant::random_values(kMatrices[weight].elements(), static_cast<unsigned>(weight) + 100 * round);
}

// Returns slices by [weight][rank], cut at random. Some slices are empty or have one element. Each of the last weights
// is whole on one rank, on a different rank each time.
std::vector<std::vector<Slice>> random_cuts(int ranks, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::vector<Slice>> cuts;
  for (std::size_t w = 0; w < kMatrices.size(); ++w) {
    const std::int64_t size = kMatrices[w].elements();
    std::vector<std::int64_t> ends;
    for (int rank = 1; rank < ranks; ++rank) {
      const bool whole = w + 3 >= kMatrices.size();
      ends.push_back(whole ? (rank > static_cast<int>(w) % ranks ? size : 0)
                           : std::uniform_int_distribution<std::int64_t>(0, size)(random));
    }
    std::sort(ends.begin(), ends.end());
    ends.push_back(size);
    for (std::size_t rank = 1; rank + 1 < ends.size(); ++rank)
      if (random() % 3 == 0)
        ends[rank] = std::min(ends[rank], ends[rank - 1] + static_cast<std::int64_t>(random() % 2));
    std::vector<Slice> slices;
    for (const std::int64_t end : ends) slices.push_back({slices.empty() ? 0 : slices.back().end, end});
    cuts.push_back(slices);
  }
  return cuts;
}

// The tests of all ranks cut 4-bit weights at these borders.
TEST(CastMastersCuts, HaveOddBordersEmptySlicesAndSingleElements) {
  for (const std::int64_t cols : {2, 288, 290}) {
    int odd = 0, empty = 0, single = 0;
    for (int ranks = 2; ranks <= 8; ++ranks)
      for (const unsigned seed : {1U, 2U}) {
        const std::vector<std::vector<Slice>> cuts = random_cuts(ranks, seed);
        for (std::size_t w = 0; w < kMatrices.size(); ++w)
          for (const Slice& slice : cuts[w])
            if (kMatrices[w].cols == cols) {
              odd += static_cast<int>(slice.begin % 2);
              empty += slice.size() == 0 ? 1 : 0;
              single += slice.size() == 1 ? 1 : 0;
            }
      }
    EXPECT_GT(std::min({odd, empty, single}), 0) << cols << " columns: " << odd << " " << empty << " " << single;
  }
}

// Extends each slice by up to three elements on both sides, so that slices of several ranks overlap.
std::vector<std::vector<Slice>> widened(std::vector<std::vector<Slice>> cuts) {
  for (std::size_t w = 0; w < cuts.size(); ++w)
    for (Slice& slice : cuts[w])
      slice = {std::max<std::int64_t>(0, slice.begin - 3), std::min(kMatrices[w].elements(), slice.end + 2)};
  return cuts;
}
// Lists every slice twice, so that two ranks have equal slices.
std::vector<std::vector<Slice>> doubled(std::vector<std::vector<Slice>> cuts) {
  for (std::vector<Slice>& slices : cuts) {
    const std::vector<Slice> once = slices;
    slices.insert(slices.end(), once.begin(), once.end());
  }
  return cuts;
}

// The arrays of one rank: its slices of the masters, and memory for whole weights.
class RankWeights {
 public:
  RankWeights(Format format, const std::vector<std::vector<Slice>>& cuts, int rank)
      : encoding_(quant::weight_encoding(format)) {
    for (std::size_t w = 0; w < kMatrices.size(); ++w) {
      const Slice slice = cuts[w][static_cast<std::size_t>(rank)];
      const quant::Stored room = quant::room_for(encoding_, kMatrices[w]);
      masters_.push_back(std::make_unique<comm::Placed<float>>(slice.size()));
      data_.push_back(std::make_unique<comm::Placed<std::uint8_t>>(room.data));
      scales_.push_back(std::make_unique<comm::Placed<std::uint8_t>>(room.scales));
      amaxes_.push_back(std::make_unique<comm::Placed<float>>(std::vector<float>{-1}));
      shards_.push_back({{.data = masters_.back()->data(), .type = quant::DType::fp32}, slice});
      weights_.push_back({kMatrices[w], {data_.back()->data(), scales_.back()->data(), amaxes_.back()->data()}});
    }
  }

  void write_masters(unsigned round) {
    for (std::size_t w = 0; w < kMatrices.size(); ++w) {
      const std::vector<float> whole = master_of(w, round);
      base::copy_bytes(masters_[w]->data(), whole.data() + shards_[w].elements.begin,
                       static_cast<std::size_t>(shards_[w].elements.size()) * sizeof(float));
    }
  }

  void expect_parts_of_whole(unsigned round) const {
    for (std::size_t w = 0; w < kMatrices.size(); ++w) {
      const quant::Stored whole = quant::quantized(master_of(w, round), kMatrices[w], encoding_);
      const bool is_nibble = encoding_.element == quant::Element::e2m1;
      std::vector<std::uint8_t> expected(whole.data.size(), kUntouched);
      for (std::int64_t i = shards_[w].elements.begin; i < shards_[w].elements.end; ++i) {
        const auto at = static_cast<std::size_t>(is_nibble ? i / 2 : i);
        const int mask = !is_nibble ? 0xFF : i % 2 == 0 ? 0x0F : 0xF0;
        expected[at] = static_cast<std::uint8_t>((expected[at] & ~mask) | (whole.data[at] & mask));
      }
      EXPECT_EQ(data_[w]->values(), expected) << "data of weight " << w;
      EXPECT_EQ(scales_[w]->values(), whole.scales) << "scales of weight " << w;
      EXPECT_EQ(amaxes_[w]->values()[0], whole.tensor_amax) << "weight " << w;
    }
  }

  void expect_whole(const std::vector<quant::Stored>& whole) const {
    for (std::size_t w = 0; w < kMatrices.size(); ++w) {
      EXPECT_EQ(data_[w]->values(), whole[w].data) << "data of weight " << w;
      EXPECT_EQ(scales_[w]->values(), whole[w].scales) << "scales of weight " << w;
      EXPECT_EQ(amaxes_[w]->values()[0], whole[w].tensor_amax) << "weight " << w;
    }
  }

  std::span<const QuantizedWeight> weights() const { return weights_; }
  std::span<const MasterShard> shards() const { return shards_; }

 private:
  quant::Encoding encoding_;
  std::vector<std::unique_ptr<comm::Placed<float>>> masters_, amaxes_;
  std::vector<std::unique_ptr<comm::Placed<std::uint8_t>>> data_, scales_;
  std::vector<MasterShard> shards_;
  std::vector<QuantizedWeight> weights_;
};

class CastMasters : public testing::TestWithParam<Format> {};
INSTANTIATE_TEST_SUITE_P(Formats, CastMasters,
                         testing::Values(Format::fp8, Format::fp8_block, Format::mxfp8, Format::nvfp4),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST_P(CastMasters, WriteTheBytesOfWholeWeightsOnOneToEightRanks) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    if (!comm::has_ranks(ranks)) continue;
    for (const unsigned seed : {1U, 2U}) {
      const std::vector<std::vector<Slice>> cuts = random_cuts(ranks, seed);
      comm::on_ranks(ranks, [&](comm::Communicator& group) {
        SCOPED_TRACE(fmt::format("{} ranks, rank {}", ranks, group.rank()));
        const std::unique_ptr<base::Lane> lane = make_compute_lane();
        RankWeights weights(GetParam(), cuts, group.rank());
        weights.write_masters(0);
        const auto cast = cast_master_weights(weights.weights(), weights.shards(), group, GetParam(), *lane);
        lane->synchronize();
        weights.expect_parts_of_whole(0);
        weights.write_masters(1);  // the new masters are at the same addresses
        cast->compute_amax();
        cast->reduce_amax(group);
        cast->cast();
        lane->synchronize();
        weights.expect_parts_of_whole(1);
      });
    }
  }
}

// Every rank has all masters, like replicas.
TEST_P(CastMasters, AcceptEqualSlicesOnSeveralRanks) {
  const std::vector<std::vector<Slice>> whole = random_cuts(1, 1);
  if (!comm::has_ranks(2)) GTEST_SKIP() << "fewer than 2 ranks";
  comm::on_ranks(2, [&](comm::Communicator& group) {
    const std::unique_ptr<base::Lane> lane = make_compute_lane();
    RankWeights weights(GetParam(), whole, 0);
    weights.write_masters(0);
    const auto cast = cast_master_weights(weights.weights(), weights.shards(), group, GetParam(), *lane);
    lane->synchronize();
    weights.expect_parts_of_whole(0);
  });
}

TEST_P(CastMasters, SendOneMessageForAllWeights) {
  if (comm::world_of_tests() != nullptr) GTEST_SKIP() << "counts operations of the local backend";
  const std::vector<std::vector<Slice>> cuts = random_cuts(3, 1);
  std::atomic<int> messages{0};
  const auto count = [&](int, const std::string&, const std::string& op, std::int64_t) {
    messages += op == "all_reduce" ? 1 : 100;
  };
  comm::LocalOptions options;
  options.inject = count;
  comm::run_local(3, options, [&](comm::World& world) {
    const auto group = comm::make_whole_group(world, 3);
    const std::unique_ptr<base::Lane> lane = make_compute_lane();
    RankWeights weights(GetParam(), cuts, group->rank());
    weights.write_masters(0);
    cast_master_weights(weights.weights(), weights.shards(), *group, GetParam(), *lane);
  });
  EXPECT_EQ(messages, 3);  // each of the three ranks sends one message
}

// Amaxes of one cast are copied to another cast, which computes no amaxes.
TEST_P(CastMasters, UseAmaxesThatTheCallerWrites) {
  const std::vector<std::vector<Slice>> whole = random_cuts(1, 1);
  const base::Device device = comm::device_of_tests();
  const std::unique_ptr<base::Lane> lane = make_compute_lane();
  RankWeights first(GetParam(), whole, 0), second(GetParam(), whole, 0);
  first.write_masters(0);
  second.write_masters(0);
  DistributedCast taken(master_slices(first.weights(), first.shards(), GetParam()), device, *lane);
  DistributedCast given(master_slices(second.weights(), second.shards(), GetParam()), device, *lane);
  EXPECT_TRUE(taken.needs_reduction());
  ASSERT_EQ(taken.amax_count(), given.amax_count());
  taken.compute_amax();
  lane->synchronize();
  base::copy_bytes(given.amaxes(), taken.amaxes(), static_cast<std::size_t>(taken.amax_count()) * sizeof(float));
  given.cast();
  lane->synchronize();
  second.expect_parts_of_whole(0);
}

std::vector<quant::Stored> whole_weights(Format format, unsigned round) {
  std::vector<quant::Stored> whole;
  for (std::size_t w = 0; w < kMatrices.size(); ++w)
    whole.push_back(quant::quantized(master_of(w, round), kMatrices[w], quant::weight_encoding(format)));
  return whole;
}

// Casts and gathers the weights of each rank twice, with other masters the second time.
void expect_gathered(Format format, const std::vector<std::vector<Slice>>& cuts) {
  const int ranks = static_cast<int>(cuts.front().size());
  if (!comm::has_ranks(ranks)) return;
  const std::vector<quant::Stored> first = whole_weights(format, 0), second = whole_weights(format, 1);
  comm::on_ranks(ranks, [&](comm::Communicator& group) {
    SCOPED_TRACE(fmt::format("{} ranks, rank {}", ranks, group.rank()));
    const std::unique_ptr<base::Lane> lane = make_compute_lane();
    RankWeights weights(format, cuts, group.rank());
    weights.write_masters(0);
    const auto cast = cast_master_weights(weights.weights(), weights.shards(), group, format, *lane);
    const auto gather = gather_quantized(weights.weights(), weights.shards(), group, format, *lane);
    lane->synchronize();
    weights.expect_whole(first);
    weights.write_masters(1);
    cast->run(group);
    gather->run(*lane);
    lane->synchronize();
    weights.expect_whole(second);
  });
}

TEST_P(CastMasters, GatherTheBytesOfWholeWeightsOnOneToEightRanks) {
  for (int ranks = 1; ranks <= 8; ++ranks)
    for (const unsigned seed : {1U, 2U}) expect_gathered(GetParam(), random_cuts(ranks, seed));
}

TEST_P(CastMasters, GatherSlicesThatOverlap) {
  for (const int ranks : {2, 5}) expect_gathered(GetParam(), widened(random_cuts(ranks, 1)));
}

TEST_P(CastMasters, GatherSlicesOfReplicas) {
  for (const int ranks : {1, 3}) expect_gathered(GetParam(), doubled(random_cuts(ranks, 1)));
}

TEST_P(CastMasters, GatherAllWeightsWithOneExchange) {
  if (comm::world_of_tests() != nullptr) GTEST_SKIP() << "counts operations of the local backend";
  const std::vector<std::vector<Slice>> cuts = random_cuts(3, 1);
  std::atomic<int> exchanges{0}, others{0};
  comm::LocalOptions options;
  options.inject = [&](int, const std::string&, const std::string& op, std::int64_t) {
    ++(op == "exchange" ? exchanges : others);
  };
  comm::run_local(3, options, [&](comm::World& world) {
    const auto group = comm::make_whole_group(world, 3);
    const std::unique_ptr<base::Lane> lane = make_compute_lane();
    RankWeights weights(GetParam(), cuts, group->rank());
    QuantizedGather gather(weights.weights(), weights.shards(), *group, GetParam());
    for (int run = 0; run < 4; ++run) gather.run(*lane);
  });
  EXPECT_EQ(exchanges, 3 * 4);
  EXPECT_EQ(others, 3);  // the exchange of the slices
}

// Returns the error of a gather over two ranks with these slices of a weight of 8 x 8 elements.
std::string gather_fault_of(Slice first, Slice second, bool has_data = true) {
  std::vector<std::uint8_t> data(64);
  const QuantizedWeight weight{{8, 8}, {has_data ? data.data() : nullptr}};
  std::string fault;
  comm::run_local(2, {}, [&](comm::World& world) {
    const auto group = comm::make_whole_group(world, 2);
    const MasterShard shard{.elements = world.rank() == 0 ? first : second};
    try {
      const QuantizedGather gather({&weight, 1}, {&shard, 1}, *group, Format::nvfp4);
    } catch (const Error& error) {
      if (world.rank() == 0) fault = error.what();
    }
  });
  return fault;
}

TEST(GatherQuantizedErrors, NameTheWeightWhoseSlicesAreWrong) {
  EXPECT_EQ(gather_fault_of({0, 13}, {13, 64}), "");
  EXPECT_THAT(gather_fault_of({0, 13}, {14, 64}), testing::HasSubstr("weight 0: "));
  EXPECT_THAT(gather_fault_of({0, 13}, {14, 64}), testing::HasSubstr("cols [13, 14)"));
  EXPECT_THAT(gather_fault_of({0, 13}, {13, 65}), testing::HasSubstr("52 columns from 13"));
  EXPECT_THAT(gather_fault_of({0, 13}, {64, 13}), testing::HasSubstr("weight 0: "));
  EXPECT_THAT(gather_fault_of({0, 13}, {13, 64}, false), testing::HasSubstr("weight 0: no memory for its data"));
}

TEST(GatherQuantizedErrors, RefuseOtherNumbersOfSlicesThanWeights) {
  const QuantizedWeight weight{{8, 8}, {}};
  comm::run_local(1, {}, [&](comm::World& world) {
    const auto group = comm::make_whole_group(world, 1);
    EXPECT_THAT(
        [&] {
          QuantizedGather({&weight, 1}, {}, *group, Format::fp8);
        },
        testing::ThrowsMessage<Error>(testing::HasSubstr("got 1 weights and 0 slices")));
  });
}

TEST_P(CastMasters, AcceptAnEmptyListOfWeights) {
  const std::unique_ptr<base::Lane> lane = make_compute_lane();
  comm::on_ranks(1, [&](comm::Communicator& group) {
    const auto cast = cast_master_weights({}, {}, group, GetParam(), *lane);
    EXPECT_FALSE(cast->needs_reduction());
    EXPECT_EQ(cast->amax_count(), 0);
    gather_quantized({}, {}, group, GetParam(), *lane);
  });
}

// Returns the error for a list of one weight.
std::string fault_of(const QuantizedWeight& weight, const MasterShard& shard, Format format) {
  try {
    const std::unique_ptr<base::Lane> lane = base::make_inline_lane();
    DistributedCast cast(master_slices({&weight, 1}, {&shard, 1}, format), {}, *lane);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(CastMastersErrors, NameTheWrongValue) {
  std::vector<float> master(64), scales(64);
  std::vector<std::uint8_t> data(64);
  float amax = 0;
  const QuantizedWeight weight{{8, 8}, {data.data(), scales.data(), &amax}};
  const MasterShard shard{{.data = master.data(), .type = quant::DType::fp32}, {0, 64}};
  const auto says = [](const std::string& fault, const char* text) {
    EXPECT_NE(fault.find(text), std::string::npos) << fault;
  };
  EXPECT_EQ(fault_of(weight, shard, Format::nvfp4), "");
  says(fault_of(weight, shard, Format::bf16), "expected a format with scales, got bf16");
  says(fault_of({{8, 7}, weight.arrays}, {shard.master, {0, 56}}, Format::nvfp4), "even number of columns");
  says(fault_of(weight, {shard.master, {0, 65}}, Format::fp8), "expected a slice within [0, 64), got [0, 65)");
  says(fault_of(weight, {{master.data(), quant::DType::fp64}, {0, 64}}, Format::fp8), "type fp64");
  says(fault_of(weight, {{nullptr, quant::DType::fp32}, {0, 64}}, Format::fp8), "64 elements without a master");
  says(fault_of({{8, 8}, {nullptr, scales.data(), &amax}}, shard, Format::fp8), "64 elements without data");
  says(fault_of({{8, 8}, {data.data(), nullptr, &amax}}, shard, Format::mxfp8), "no memory for its scales");
  says(fault_of({{8, 8}, {data.data(), scales.data()}}, shard, Format::nvfp4), "no memory for its amax");
  EXPECT_THROW(master_slices({&weight, 1}, {}, Format::fp8), Error);
}

}  // namespace
}  // namespace tessera::shard
