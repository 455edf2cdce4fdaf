// Compares exact sums with integers of arbitrary size. Tests the definition, and the kernels of the host and of a GPU.
#include "tessera/quant/exact_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "tessera/base/memory/buffer.h"
#include "tests/quant/on_device.h"
#include "tests/quant/wide_integer.h"

namespace tessera::quant {
namespace {

using Values = std::vector<double>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLargest = std::numeric_limits<double>::max();
constexpr double kSmallest = std::numeric_limits<double>::denorm_min();

// Draws numbers with exponents from `low` to `high` and mantissas of all kinds.
Values random_numbers(std::size_t count, int low, int high, bool is_signed, unsigned seed) {
  std::mt19937_64 random(seed);
  Values values;
  for (std::size_t i = 0; i < count; ++i) {
    const auto exponent = low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
    std::uint64_t fraction = random() >> 12;
    if (random() % 4 == 0) fraction = random() % 2 == 0 ? 0 : 0xFFFFFFFFFFFFFu;
    const double mantissa = std::bit_cast<double>(std::bit_cast<std::uint64_t>(1.0) | fraction);
    const double value = std::ldexp(mantissa, exponent);  // subnormal numbers are rounded
    values.push_back(is_signed && random() % 2 == 0 ? -value : value);
  }
  return values;
}

WideInteger integer_sum(const Values& values) {
  WideInteger sum;
  for (const double value : values) sum += WideInteger(value);
  return sum;
}

// Returns the integer value of the limbs. Each limb may have any sign and size.
WideInteger integer_of(const ExactSum& sum) {
  WideInteger integer;
  for (int i = 0; i < kExactLimbs; ++i) {
    WideInteger limb;
    limb.add_bits(static_cast<std::uint64_t>(std::abs(sum.limbs[i])), kLimbBits * i);
    if (sum.limbs[i] < 0) limb.negate();
    integer += limb;
  }
  return integer;
}

bool is_normalised(const ExactSum& sum) {
  return std::all_of(sum.limbs, sum.limbs + kExactLimbs - 1,
                     [](std::int64_t limb) { return limb >= 0 && limb < std::int64_t{1} << kLimbBits; });
}

// Compares the bits.
testing::AssertionResult same_number(double got, double expected) {
  if (std::bit_cast<std::uint64_t>(got) == std::bit_cast<std::uint64_t>(expected)) return testing::AssertionSuccess();
  return testing::AssertionFailure() << std::hexfloat << got << ", expected " << expected;
}

class ExactSums : public OnBothDevices {
 protected:
  // Returns the sum after the kernels add the values to it.
  ExactSum added(ExactSum sum, const Values& values) const {
    base::Buffer terms(values.size() * sizeof(double), GetParam()), result(sizeof sum, GetParam());
    base::copy_bytes(terms.data(), values.data(), terms.size());
    base::copy_bytes(result.data(), &sum, sizeof sum);
    kernels().add_exactly(terms.as<double>().data(), static_cast<std::int64_t>(values.size()),
                          result.as<ExactSum>().data());
    base::copy_bytes(&sum, result.data(), sizeof sum);
    return sum;
  }
  double rounded_by_kernels(const ExactSum& sum) const {
    base::Buffer given(sizeof sum, GetParam()), result(sizeof(double), GetParam());
    base::copy_bytes(given.data(), &sum, sizeof sum);
    kernels().round_exactly(given.as<ExactSum>().data(), result.as<double>().data());
    double total = 0;
    base::copy_bytes(&total, result.data(), sizeof total);
    return total;
  }
  double sum_of(const Values& values) const { return rounded_by_kernels(added({}, values)); }
};

TEST_P(ExactSums, ASumOfOneNumberEqualsThatNumber) {
  for (int exponent = -1074; exponent < 1024; exponent += 7)
    for (const double value : random_numbers(2, exponent, std::min(exponent + 6, 1023), true, 3))
      EXPECT_TRUE(same_number(sum_of({value}), value));
  for (const double value : {kSmallest, 0x1p-1023, 0x1p-1022 - kSmallest, 0x1p-1022, 1.0, 0x1p970, kLargest}) {
    EXPECT_TRUE(same_number(sum_of({value}), value));
    EXPECT_TRUE(same_number(sum_of({-value}), -value));
  }
  for (const Values& zeros : {Values{}, Values{0.0}, Values{-0.0}, Values{1.0, -1.0}})
    EXPECT_TRUE(same_number(sum_of(zeros), 0.0));
}

// Covers squares of typical gradients, the whole range, subnormal numbers, and terms of both signs that nearly cancel.
TEST_P(ExactSums, AreTheExactSumsRoundedOnceInEveryOrder) {
  struct Range {
    int low, high;
    bool is_signed;
  };
  std::mt19937 random(5);
  for (const Range range : {Range{-140, 120, false},
                            {-1074, 1012, false},
                            {-1074, -1000, false},
                            {-1074, 1012, true},
                            {-30, 30, true},
                            {0, 0, true}})
    for (const std::size_t count : {2, 3, 10, 63, 64, 65, 700, 2049}) {
      Values values = random_numbers(count, range.low, range.high, range.is_signed, static_cast<unsigned>(count));
      if (range.is_signed)
        for (std::size_t i = 0; i + 1 < count / 2; ++i) values.push_back(-values[i]);
      const WideInteger exact = integer_sum(values);
      const ExactSum expected = added({}, values);
      EXPECT_TRUE(is_normalised(expected));
      EXPECT_EQ(integer_of(expected), exact);
      EXPECT_TRUE(same_number(rounded_by_kernels(expected), nearest(exact))) << range.low << " " << count;
      for (int order = 0; order < 3; ++order) {
        std::shuffle(values.begin(), values.end(), random);
        EXPECT_EQ(added({}, values), expected);
      }
    }
}

// The counts exceed one value per thread and one grid.
TEST_P(ExactSums, OfManyNumbersEqualTheDefinition) {
  for (const std::size_t count : {70'000, 2'200'003}) {
    Values values = random_numbers(count, -1074, 900, true, 11);
    values[count / 2] = -kInfinity;
    values.back() = std::nan("");
    ExactSum expected;
    for (const double value : values) add(expected, value);
    normalise(expected);
    EXPECT_EQ(expected.nans, 1);
    EXPECT_EQ(expected.negative_infinities, 1);
    EXPECT_EQ(added({}, values), expected) << count;
  }
}

// Ranks add their sums by adding all words.
TEST_P(ExactSums, OfRanksAddWordByWord) {
  std::mt19937 random(7);
  const Values values = random_numbers(1000, -1074, 1000, true, 9);
  const ExactSum whole = added({}, values);
  for (const std::size_t ranks : {1, 2, 3, 64}) {
    std::vector<Values> parts(ranks);
    for (const double value : values) parts[random() % ranks].push_back(value);
    std::vector<std::int64_t> words(kExactSumWords);
    for (const Values& part : parts) {
      const ExactSum sum = added({}, part);
      std::vector<std::int64_t> own(kExactSumWords);
      std::memcpy(own.data(), &sum, sizeof sum);
      for (std::size_t i = 0; i < words.size(); ++i) words[i] += own[i];
    }
    ExactSum merged;
    std::memcpy(&merged, words.data(), sizeof merged);
    EXPECT_TRUE(same_number(rounded_by_kernels(merged), nearest(integer_sum(values)))) << ranks;
    normalise(merged);
    EXPECT_EQ(merged, whole) << ranks;
  }
}

TEST_P(ExactSums, RoundToNearestEven) {
  const auto expect = [&](const Values& values, double expected) {
    EXPECT_TRUE(same_number(sum_of(values), expected));
    EXPECT_TRUE(same_number(nearest(integer_sum(values)), expected)) << "the test's own reference";
    Values negative = values;
    for (double& value : negative) value = -value;
    EXPECT_TRUE(same_number(sum_of(negative), -expected));
  };
  for (const int exponent : {-1021, -1020, -900, -500, -32, -1, 0, 1, 11, 12, 21, 31, 32, 500, 970}) {
    const double one = std::ldexp(1.0, exponent), last = std::ldexp(1.0, exponent - 52);
    const double half = std::ldexp(1.0, exponent - 53);
    expect({one, half}, one);                   // a tie: rounds down to even
    expect({one, last, half}, one + 2 * last);  // a tie: rounds up
    expect({2 * one, -half}, 2 * one);          // a tie: the carry reaches the exponent
    if (exponent < -900) continue;              // the next sums need bits below half
    expect({one, half, std::ldexp(half, -31)}, one + last);
    expect({one, last, half, -std::ldexp(half, -31)}, one + last);
    expect({one, half, kSmallest}, one + last);
    expect({one, last, half, -kSmallest}, one + last);
    expect({2 * one, -half, -kSmallest}, 2 * one - last);
  }
  expect({0x1p-1022, -kSmallest}, 0x1p-1022 - kSmallest);
  expect({0x1p-1022 - kSmallest, kSmallest}, 0x1p-1022);
  expect({kSmallest, kSmallest, kSmallest}, 3 * kSmallest);
}

TEST_P(ExactSums, BeyondTheLargestNumberAreInfinite) {
  const double half = 0x1p970;  // this value is half of the last bit of the largest number
  EXPECT_TRUE(same_number(sum_of({kLargest, half}), kInfinity));
  EXPECT_TRUE(same_number(sum_of({kLargest, half, -kSmallest}), kLargest));
  EXPECT_TRUE(same_number(sum_of({-kLargest, -half}), -kInfinity));
  EXPECT_TRUE(same_number(sum_of(Values(100, kLargest)), kInfinity));
  // A plain sum would overflow to infinity before the negative terms.
  EXPECT_TRUE(same_number(sum_of({kLargest, kLargest, -kLargest}), kLargest));
}

TEST_P(ExactSums, OfNaNsAndInfinitiesEqualPlainSums) {
  const double nan = std::nan("");
  for (const Values& values : {Values{1, kInfinity, 2},
                               {-kInfinity, 1},
                               {kInfinity, kInfinity},
                               {kLargest, -kInfinity},
                               {1, nan, 2},
                               {-nan},
                               {kInfinity, 1, -kInfinity},
                               {nan, kInfinity}}) {
    double plain = 0;
    for (const double value : values) plain += value;
    const double total = sum_of(values);
    EXPECT_EQ(std::isnan(total), std::isnan(plain));
    EXPECT_TRUE(std::isnan(plain) || total == plain);
  }
  const ExactSum counted = added({}, {nan, 3, kInfinity, nan, -nan, -kInfinity, kInfinity, 4});
  EXPECT_EQ(counted.nans, 3);
  EXPECT_EQ(counted.positive_infinities, 2);
  EXPECT_EQ(counted.negative_infinities, 1);
  EXPECT_EQ(integer_of(counted), WideInteger(7.0));
}

// The state after kMaxExactAdditions additions of the largest limb values to a normalised sum.
TEST_P(ExactSums, HoldTheMaximumAdditionsAndCarryThroughAllLimbs) {
  const std::int64_t full = (std::int64_t{1} << kLimbBits) - 1;
  for (const std::int64_t sign : {1, -1}) {
    ExactSum sum;
    for (int i = 0; i + 3 < kExactLimbs; ++i) sum.limbs[i] = full + sign * kMaxExactAdditions * full;
    ASSERT_EQ(sum.limbs[0] / full, 1 + sign * kMaxExactAdditions) << "no overflow";
    const WideInteger exact = integer_of(sum);
    EXPECT_TRUE(same_number(rounded_by_kernels(sum), nearest(exact)));
    normalise(sum);
    EXPECT_TRUE(is_normalised(sum));
    EXPECT_EQ(integer_of(sum), exact);
  }
  ExactSum ones;
  std::fill(ones.limbs, ones.limbs + kExactLimbs - 1, full);
  const ExactSum carried = added(ones, {kSmallest});
  ExactSum expected;
  expected.limbs[kExactLimbs - 1] = 1;
  EXPECT_EQ(carried, expected);
  EXPECT_EQ(added(carried, {-kSmallest}), ones);
}

// The last limb cannot carry. The sum of very many of the largest numbers must stay exact.
TEST_P(ExactSums, HaveRoomForManyOfTheLargestNumbers) {
  for (const double largest : {kLargest, -kLargest}) {
    ExactSum sum = added({}, {largest});
    WideInteger exact(largest);
    for (int doublings = 0; doublings < 45; ++doublings) {
      for (std::int64_t& limb : sum.limbs) limb *= 2;
      normalise(sum);
      exact += WideInteger(exact);
    }
    EXPECT_EQ(integer_of(sum), exact);
    EXPECT_TRUE(same_number(rounded_by_kernels(sum), std::copysign(kInfinity, largest)));
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, ExactSums, testing::Values(base::Device{}, kTestDevice), name_of_device);

}  // namespace
}  // namespace tessera::quant
