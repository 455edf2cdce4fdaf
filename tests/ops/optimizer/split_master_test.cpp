// Tests the rule for fp32 masters of bf16 weights.
#include "tessera/ops/optimizer/split_master.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "tessera/ops/optimizer/adamw.h"
#include "tessera/quant/bfloat16.h"

namespace tessera::ops::test {
namespace {

using quant::bfloat16, quant::DType;

float master_of(std::uint32_t bits) {
  return std::bit_cast<float>(bits);
}
std::uint32_t bits_of(float master) {
  return std::bit_cast<std::uint32_t>(master);
}

// Returns 600 high halves of masters: zeros, subnormals, ones, the greatest finite numbers, infinities, NaNs, and
// random ones.
std::vector<std::uint32_t> high_halves() {
  std::vector<std::uint32_t> halves;
  for (const std::uint32_t sign : {0U, 0x8000U})
    for (const std::uint32_t half :
         {0x0000U, 0x0001U, 0x0002U, 0x007EU, 0x007FU, 0x0080U, 0x0081U, 0x3F7FU, 0x3F80U, 0x3F81U, 0x7F7EU, 0x7F7FU,
          0x7F80U, 0x7F81U, 0x7FBFU, 0x7FC0U, 0x7FC1U, 0x7FFEU, 0x7FFFU})
      halves.push_back(sign | half);
  std::mt19937 random(23);
  while (halves.size() < 600) halves.push_back(random() & 0xFFFF);
  return halves;
}

TEST(RepresentableMaster, ChangesOnlyTiesAboveAnEvenHighHalf) {
  for (const std::uint32_t high : high_halves())
    for (std::uint32_t low = 0; low < 0x10000; ++low) {
      const float master = master_of(high << 16 | low), kept = representable(master);
      const bool is_tie = low == 0x8000 && high % 2 == 0;
      ASSERT_EQ(bits_of(kept), is_tie ? high << 16 | 0x7FFF : high << 16 | low);
      ASSERT_EQ(std::isnan(kept), std::isnan(master)) << high;
      if (std::isnan(master)) continue;
      ASSERT_EQ(bfloat16(kept).bits, bfloat16(master).bits) << high << " " << low;
    }
}

// An update with the rate 0 keeps a master, unless the master is a tie of a bf16 weight.
TEST(RepresentableMaster, IsWrittenByUpdatesOfBf16Weights) {
  const float tie = 1 + 0x1p-8F, odd = 1 + 0x3p-8F;  // above an even and above an odd high half
  for (const bool has_bf16_moments : {false, true})
    for (const DType weight_type : {DType::bf16, DType::fp32})
      for (const bool writes_weight : {false, true}) {
        constexpr std::size_t kCount = 3000;
        std::vector<float> masters(kCount, tie), gradient(kCount, 1), moments(2 * kCount);
        for (std::size_t i = 0; i < kCount; i += 3) masters[i] = odd;
        std::vector<float> weights(kCount);
        const UpdateShard shard{.master = masters.data(),
                                .weight = writes_weight ? weights.data() : nullptr,
                                .weight_type = weight_type,
                                .gradient = gradient.data(),
                                .planes = {moments.data(), moments.data() + kCount},
                                .count = kCount};
        adamw(step_scalars({}, /*lr=*/0, 1), shard, {}, has_bf16_moments);
        for (std::size_t i = 0; i < kCount; ++i) {
          const float before = i % 3 == 0 ? odd : tie;
          ASSERT_EQ(masters[i], weight_type == DType::bf16 ? representable(before) : before) << i;
          if (!writes_weight) continue;
          if (weight_type == DType::fp32) {
            ASSERT_EQ(weights[i], before);
          } else {
            bfloat16 weight;
            std::memcpy(&weight, reinterpret_cast<const std::byte*>(weights.data()) + 2 * i, sizeof weight);
            ASSERT_EQ(weight.bits, bfloat16(before).bits) << i;
          }
        }
      }
}

}  // namespace
}  // namespace tessera::ops::test
