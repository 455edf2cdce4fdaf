// Rounding and casts on the host. tests/comm/device_kernels_test.cpp holds those of a device to them.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/quant/elementwise.h"
#include "tessera/quant/rounding.h"

namespace tessera::quant {
namespace {

TEST(Rounding, IsToNearestEvenOnce) {
  EXPECT_EQ(round_to<bfloat16>(1.0 + 0x1p-8).bits, 0x3F80);            // a tie: to even
  EXPECT_EQ(round_to<bfloat16>(1.0 + 0x1p-8 + 0x1p-40).bits, 0x3F81);  // twice rounded it would be the tie
  EXPECT_EQ(round_to<bfloat16>(1.0 + 0x3p-8 - 0x1p-40).bits, 0x3F81);
  EXPECT_EQ(round_to<bfloat16>(-(1.0 + 0x1p-8 + 0x1p-40)).bits, 0xBF81);
  EXPECT_EQ(round_to<bfloat16>(1e300).bits, 0x7F80);
  EXPECT_EQ(round_to<bfloat16>(-1e-60).bits, 0x8000);
  EXPECT_EQ(round_to<bfloat16>(0.0).bits, 0);
  EXPECT_EQ(round_to<bfloat16>(std::numeric_limits<double>::quiet_NaN()).bits & 0x7FC0, 0x7FC0);
  EXPECT_EQ(round_to<bfloat16>(-std::numeric_limits<double>::infinity()).bits, 0xFF80);
}

// Around the middle between every pair of neighbours, one unit of fp64 off it and on it.
TEST(Rounding, OfDoublesDecidesEveryTie) {
  for (std::uint32_t high = 0; high < 0x7F7F; ++high) {
    bfloat16 low, up;
    low.bits = static_cast<std::uint16_t>(high);
    up.bits = static_cast<std::uint16_t>(high + 1);
    const double a = static_cast<float>(low), b = static_cast<float>(up), middle = a + (b - a) / 2;
    ASSERT_EQ(round_to<bfloat16>(middle).bits, high + high % 2);
    ASSERT_EQ(round_to<bfloat16>(std::nextafter(middle, a)).bits, high);
    ASSERT_EQ(round_to<bfloat16>(std::nextafter(middle, b)).bits, high + 1);
    ASSERT_EQ(round_to<bfloat16>(-std::nextafter(middle, b)).bits, 0x8000 + high + 1);
  }
}

TEST(Cast, RoundsRangesOfDoublesToBf16Once) {
  const std::vector<double> values(20, 1.0 + 0x1p-8 + 0x1p-40);
  std::vector<bfloat16> rounded(values.size());
  cast(values.data(), DType::fp64, rounded.data(), DType::bf16, static_cast<std::int64_t>(values.size()));
  for (const bfloat16& value : rounded) EXPECT_EQ(value.bits, 0x3F81);
}

TEST(Cast, DoesNotDependOnPosition) {
  constexpr std::int64_t count = 200;
  std::mt19937_64 random(1);
  std::vector<double> values(count);
  for (double& value : values) value = std::normal_distribution<double>()(random);
  for (const DType from : {DType::bf16, DType::fp32, DType::fp64}) {
    std::vector<std::byte> source(count * size_of(from));
    cast(values.data(), DType::fp64, source.data(), from, count);
    for (const DType to : {DType::bf16, DType::fp32, DType::fp64}) {
      std::vector<std::byte> whole(count * size_of(to)), part(whole.size());
      cast(source.data(), from, whole.data(), to, count);
      for (std::size_t begin = 0; begin < 40; ++begin) {
        const std::size_t length = count - 3 * begin;
        cast(source.data() + begin * size_of(from), from, part.data(), to, static_cast<std::int64_t>(length));
        EXPECT_EQ(std::memcmp(part.data(), whole.data() + begin * size_of(to), length * size_of(to)), 0)
            << name_of(from) << " to " << name_of(to) << " from " << begin;
      }
    }
  }
}

TEST(Cast, RefusesTypesThatAreNotFloating) {
  EXPECT_THROW(cast(nullptr, DType::i32, nullptr, DType::fp32, 0), Error);
  EXPECT_THROW(cast(nullptr, DType::fp32, nullptr, DType::u8, 0), Error);
}

}  // namespace
}  // namespace tessera::quant
