// Tests rounding and casts on the host. tests/comm/device_kernels_test.cpp compares the casts of a device with these.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/quant/elementwise.h"
#include "tessera/quant/rounding.h"
#include "tests/quant/values.h"

namespace tessera::quant {
namespace {

TEST(Rounding, RoundsOnceToNearestEven) {
  EXPECT_EQ(round_to<bfloat16>(1.0 + 0x1p-8).bits, 0x3F80);            // a tie: rounded to even
  EXPECT_EQ(round_to<bfloat16>(1.0 + 0x1p-8 + 0x1p-40).bits, 0x3F81);  // rounding twice would make it a tie
  EXPECT_EQ(round_to<bfloat16>(1.0 + 0x3p-8 - 0x1p-40).bits, 0x3F81);
  EXPECT_EQ(round_to<bfloat16>(-(1.0 + 0x1p-8 + 0x1p-40)).bits, 0xBF81);
  EXPECT_EQ(round_to<bfloat16>(1e300).bits, 0x7F80);
  EXPECT_EQ(round_to<bfloat16>(-1e-60).bits, 0x8000);
  EXPECT_EQ(round_to<bfloat16>(0.0).bits, 0);
  EXPECT_EQ(round_to<bfloat16>(std::numeric_limits<double>::quiet_NaN()).bits & 0x7FC0, 0x7FC0);
  EXPECT_EQ(round_to<bfloat16>(-std::numeric_limits<double>::infinity()).bits, 0xFF80);
}

// Tests the midpoint between each pair of adjacent bf16 numbers, and the two doubles next to the midpoint.
TEST(Rounding, RoundsDoublesCorrectlyAroundEveryTie) {
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

TEST(Cast, RoundsFp32ToNearestEvenLikeTheDefinition) {
  std::vector<float> source;
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 40961)
    source.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  std::vector<bfloat16> got(source.size()), expected;
  for (const float value : source) expected.push_back(bfloat16(value));
  cast(source.data(), DType::fp32, got.data(), DType::bf16, static_cast<std::int64_t>(source.size()));
  EXPECT_TRUE(same_bits(got, expected));
}

// Returns the bf16 number nearest to a double, by search: the nearer of the two neighbours of its truncation, or the
// even one for a tie.
float nearest_bfloat16(double value) {
  const auto truncated = std::bit_cast<std::uint32_t>(std::trunc(value) == 0 && std::fabs(value) < 1e-45
                                                          ? std::copysign(0.0f, static_cast<float>(value))
                                                          : std::nextafter(static_cast<float>(value), 0.0f)) &
                         0xFFFF0000u;
  float best = std::bit_cast<float>(truncated);
  for (const std::uint32_t step : {0x10000u, 0x20000u}) {
    const float next = std::bit_cast<float>(truncated + step);
    const double d = std::fabs(static_cast<double>(next) - value), now = std::fabs(static_cast<double>(best) - value);
    const bool is_even = (std::bit_cast<std::uint32_t>(next) >> 16) % 2 == 0;
    if (d < now || (d == now && is_even)) best = next;
  }
  return best;
}

TEST(Cast, RoundsFp64ToBfloat16Once) {
  std::vector<double> source;
  for (int exponent = -30; exponent < 30; ++exponent)
    for (const double fraction : {1.0, 1.00390625, 1.01171875, 1.5, 1.99609375, 1.998046875})
      for (const double off : {0.0, 1e-15, -1e-15, 1e-9, -1e-9, 1e-4})
        for (const double sign : {1.0, -1.0}) source.push_back(sign * std::ldexp(fraction + off, exponent));
  std::vector<bfloat16> got(source.size());
  cast(source.data(), DType::fp64, got.data(), DType::bf16, static_cast<std::int64_t>(source.size()));
  for (std::size_t i = 0; i < source.size(); ++i)
    EXPECT_EQ(static_cast<float>(got[i]), nearest_bfloat16(source[i])) << std::hexfloat << source[i];

  const double infinity = std::numeric_limits<double>::infinity();
  const std::vector<double> special{0.0, -0.0, infinity, -infinity, 1e300, 3.4e38, std::nan("")};
  std::vector<bfloat16> out(special.size());
  cast(special.data(), DType::fp64, out.data(), DType::bf16, static_cast<std::int64_t>(special.size()));
  EXPECT_EQ(out[0].bits, 0x0000);
  EXPECT_EQ(out[1].bits, 0x8000);
  EXPECT_EQ(out[2].bits, 0x7F80);
  EXPECT_EQ(out[3].bits, 0xFF80);
  EXPECT_EQ(out[4].bits, 0x7F80);
  EXPECT_EQ(out[5].bits, 0x7F80);  // exceeds the largest bf16 by more than half a step
  EXPECT_TRUE(std::isnan(static_cast<float>(out[6])));
}

TEST(Cast, OtherTypePairsMatchStaticCast) {
  const auto doubles = values_of<double>(0, 0, 1003);
  std::vector<float> floats(1003);
  std::vector<double> back(1003);
  cast(doubles.data(), DType::fp64, floats.data(), DType::fp32, 1003);
  cast(floats.data(), DType::fp32, back.data(), DType::fp64, 1003);
  for (std::size_t i = 0; i < 1003; ++i) {
    EXPECT_EQ(floats[i], static_cast<float>(doubles[i]));
    EXPECT_EQ(back[i], static_cast<double>(floats[i]));
  }
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

TEST(Cast, RejectsNonFloatingTypes) {
  EXPECT_THROW(cast(nullptr, DType::i32, nullptr, DType::fp32, 0), Error);
  EXPECT_THROW(cast(nullptr, DType::fp32, nullptr, DType::u8, 0), Error);
}

}  // namespace
}  // namespace tessera::quant
