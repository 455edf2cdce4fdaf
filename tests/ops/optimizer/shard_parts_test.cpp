// Tests the parts of a shard: where their memory begins, and the amax that belongs to their first element.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tessera/ops/optimizer/update_rule.h"

namespace tessera::ops {
namespace {

// Memory that the functions do not read.
struct Arrays {
  std::vector<float> masters = std::vector<float>(100), gradients = std::vector<float>(100),
                     amaxes = std::vector<float>(8);
  std::vector<std::uint16_t> weights = std::vector<std::uint16_t>(100), plane = std::vector<std::uint16_t>(100),
                             low_halves = std::vector<std::uint16_t>(100);

  UpdateShard shard() {
    UpdateShard result;
    result.master = masters.data();
    result.weight = weights.data(), result.weight_type = quant::DType::bf16;
    result.gradient = gradients.data();
    result.planes[0] = plane.data();
    result.count = 100, result.group = 3;
    return result;
  }
};
const std::vector<StatePlane> kPlanes{{"momentum", quant::DType::bf16}};

TEST(ShardParts, BeginAtTheirElementInEveryArray) {
  Arrays arrays;
  const UpdateShard part = part_of(arrays.shard(), 7, 12, kPlanes);
  EXPECT_EQ(part.count, 12);
  EXPECT_EQ(part.group, 3);
  EXPECT_EQ(part.master, arrays.masters.data() + 7);
  EXPECT_EQ(part.weight, arrays.weights.data() + 7);
  EXPECT_EQ(part.gradient, arrays.gradients.data() + 7);
  EXPECT_EQ(part.planes[0], arrays.plane.data() + 7);
}

TEST(ShardParts, OfSplitMastersCountTheirLowHalves) {
  Arrays arrays;
  UpdateShard whole = arrays.shard();
  whole.master = arrays.low_halves.data(), whole.is_split = true;
  EXPECT_EQ(part_of(whole, 7, 12, kPlanes).master, arrays.low_halves.data() + 7);
}

TEST(ShardParts, KeepMissingArraysMissing) {
  Arrays arrays;
  UpdateShard whole = arrays.shard();
  whole.weight = nullptr;
  const UpdateShard part = part_of(whole, 7, 12, {});
  EXPECT_EQ(part.weight, nullptr);
  EXPECT_EQ(part.amax, nullptr);
}

// The shard begins at element 5 of a matrix of 20 elements, so element 15 is the first of the next matrix.
TEST(ShardParts, BelongToTheMatrixOfTheirFirstElement) {
  Arrays arrays;
  UpdateShard whole = arrays.shard();
  whole.amax = arrays.amaxes.data(), whole.amax_elements = 20, whole.amax_offset = 5;
  struct Expected {
    std::int64_t offset, matrix, position;
  };
  for (const auto& [offset, matrix, position] : {Expected{0, 0, 5}, {14, 0, 19}, {15, 1, 0}, {60, 3, 5}}) {
    const UpdateShard part = part_of(whole, offset, 1, kPlanes);
    EXPECT_EQ(part.amax, arrays.amaxes.data() + matrix) << offset;
    EXPECT_EQ(part.amax_offset, position) << offset;
    EXPECT_EQ(part.amax_elements, 20);
  }
  // One matrix: every part raises the same amax.
  whole.amax_elements = whole.amax_offset = 0;
  EXPECT_EQ(part_of(whole, 60, 1, kPlanes).amax, arrays.amaxes.data());
}

}  // namespace
}  // namespace tessera::ops
