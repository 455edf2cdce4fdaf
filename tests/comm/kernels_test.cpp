// The raw-pointer kernels against plain loops, bit by bit, at every alignment and cut.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tessera/base/error.h"
#include "tessera/comm/reduce.h"
#include "tessera/quant/elementwise.h"
#include "tests/comm/values.h"

namespace tessera::comm {
namespace {

using quant::bfloat16;
using quant::DType;

template <typename To, typename From>
To plain(From value) {
  if constexpr (std::is_same_v<From, bfloat16>)
    return static_cast<To>(static_cast<float>(value));
  else
    return static_cast<To>(value);
}

template <typename T>
class Sums : public testing::Test {};
using FloatingTypes = testing::Types<bfloat16, float, double>;
TYPED_TEST_SUITE(Sums, FloatingTypes);

template <typename Acc, typename Part>
void check_sums(int parts, std::int64_t count, bool accumulate, std::int64_t shift) {
  std::vector<std::vector<Part>> data;
  std::vector<const void*> pointers;
  for (int p = 0; p < parts; ++p) data.push_back(values_of<Part>(p, 0, count + shift));
  for (const auto& part : data) pointers.push_back(part.data() + shift);
  std::vector<Acc> sum = values_of<Acc>(99, 0, count), expected = sum;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<std::size_t>(i + shift);
    Acc value = accumulate ? expected[static_cast<std::size_t>(i)] : plain<Acc>(data[0][at]);
    for (int p = accumulate ? 0 : 1; p < parts; ++p) value = value + plain<Acc>(data[static_cast<std::size_t>(p)][at]);
    expected[static_cast<std::size_t>(i)] = value;
  }
  ordered_sum(sum.data(), TypeOf<Acc>::value, accumulate, pointers, TypeOf<Part>::value, count);
  EXPECT_TRUE(same_bits(sum, expected)) << parts << " parts, shift " << shift;
}

TYPED_TEST(Sums, AddInOrderWhateverTheNumberOfPartsAndThePosition) {
  for (const int parts : {1, 2, 3, 7, 8, 9, 16, 19})
    for (const std::int64_t count : {0, 1, 5, 31, 2048, 5003})
      for (const bool accumulate : {false, true}) {
        check_sums<float, TypeParam>(parts, count, accumulate, count % 4);
        check_sums<double, TypeParam>(parts, count, accumulate, (count + parts) % 4);
      }
}

// What the other tests of sums rest on.
TYPED_TEST(Sums, AnotherOrderOfTheTestValuesGivesOtherBits) {
  const auto a = values_of<TypeParam>(0, 0, 1000), b = values_of<TypeParam>(1, 0, 1000),
             c = values_of<TypeParam>(2, 0, 1000);
  const std::vector<const void*> forward{a.data(), b.data(), c.data()}, rotated{b.data(), c.data(), a.data()};
  std::vector<TypeParam> one(1000), other(1000);
  reduce(one.data(), forward, TypeOf<TypeParam>::value, ReduceOp::sum, 1000);
  reduce(other.data(), rotated, TypeOf<TypeParam>::value, ReduceOp::sum, 1000);
  EXPECT_FALSE(same_bits(one, other));
}

TYPED_TEST(Sums, TheSumMayBeOneOfTheParts) {
  if constexpr (!std::is_same_v<TypeParam, bfloat16>) {
    for (const int parts : {3, 12})
      for (int own = 0; own < parts; own += 2) {
        std::vector<std::vector<TypeParam>> data;
        for (int p = 0; p < parts; ++p) data.push_back(values_of<TypeParam>(p, 0, 5003));
        std::vector<const void*> pointers;
        for (const auto& part : data) pointers.push_back(part.data());
        std::vector<TypeParam> expected(5003);
        ordered_sum(expected.data(), TypeOf<TypeParam>::value, false, pointers, TypeOf<TypeParam>::value, 5003);
        auto& in_place = data[static_cast<std::size_t>(own)];
        ordered_sum(in_place.data(), TypeOf<TypeParam>::value, false, pointers, TypeOf<TypeParam>::value, 5003);
        EXPECT_TRUE(same_bits(in_place, expected));
      }
  }
}

TYPED_TEST(Sums, CutsOfARangeGiveTheSameBits) {
  const auto a = values_of<TypeParam>(0, 0, 1000), b = values_of<TypeParam>(1, 0, 1000),
             c = values_of<TypeParam>(2, 0, 1000);
  const std::vector<const void*> parts{a.data(), b.data(), c.data()};
  std::vector<TypeParam> whole(1000), cut(1000);
  reduce(whole.data(), parts, TypeOf<TypeParam>::value, ReduceOp::sum, 1000);
  for (std::size_t begin = 0, size = 1; begin < 1000; begin += size, ++size) {
    size = std::min(size, 1000 - begin);
    const std::vector<const void*> shifted{a.data() + begin, b.data() + begin, c.data() + begin};
    reduce(cut.data() + begin, shifted, TypeOf<TypeParam>::value, ReduceOp::sum, static_cast<std::int64_t>(size));
  }
  EXPECT_TRUE(same_bits(cut, whole));
}

TYPED_TEST(Sums, ExtremesKeepNotANumber) {
  using T = TypeParam;
  const T nan = T(std::numeric_limits<float>::quiet_NaN());
  const std::vector<T> a{T(1.0f), nan, T(3.0f), T(-1.0f)}, b{T(2.0f), T(5.0f), nan, T(-2.0f)},
      c{T(0.0f), T(7.0f), T(9.0f), T(-3.0f)};
  const std::vector<const void*> parts{a.data(), b.data(), c.data()};
  for (const bool maximum : {true, false}) {
    std::vector<T> out(4);
    ordered_extreme(out.data(), parts, TypeOf<T>::value, 4, maximum);
    EXPECT_EQ(plain<double>(out[0]), maximum ? 2 : 0);
    EXPECT_TRUE(std::isnan(plain<double>(out[1])));
    EXPECT_TRUE(std::isnan(plain<double>(out[2])));
    EXPECT_EQ(plain<double>(out[3]), maximum ? -1 : -3);
  }
}

TEST(Cast, RoundsFp32ToNearestEvenAsTheDefinitionDoes) {
  std::vector<float> source;
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 40961)
    source.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  std::vector<bfloat16> got(source.size()), expected;
  for (const float value : source) expected.push_back(bfloat16(value));
  cast(source.data(), DType::fp32, got.data(), DType::bf16, static_cast<std::int64_t>(source.size()));
  EXPECT_TRUE(same_bits(got, expected));
}

// The bf16 nearest to a double, by search: of the two neighbours around its truncation the nearer, on a tie the even
// one.
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
  EXPECT_EQ(out[5].bits, 0x7F80);  // above the largest bf16 by more than half a step
  EXPECT_TRUE(std::isnan(static_cast<float>(out[6])));
}

TEST(Cast, OtherPairsFollowTheLanguage) {
  const auto doubles = values_of<double>(0, 0, 1003);
  std::vector<float> floats(1003);
  std::vector<double> back(1003);
  cast(doubles.data(), DType::fp64, floats.data(), DType::fp32, 1003);
  cast(floats.data(), DType::fp32, back.data(), DType::fp64, 1003);
  for (std::size_t i = 0; i < 1003; ++i) {
    EXPECT_EQ(floats[i], static_cast<float>(doubles[i]));
    EXPECT_EQ(back[i], static_cast<double>(floats[i]));
  }
  EXPECT_THROW(cast(doubles.data(), DType::i32, floats.data(), DType::fp32, 1), Error);
}

TEST(CopyMatrix, MovesTheBoxAndNothingElse) {
  for (const std::size_t element : {1, 2, 4, 8})
    for (const std::int64_t rows : {0, 1, 3, 17})
      for (const std::int64_t cols : {0, 1, 5, 40}) {
        const std::int64_t from_stride = cols + 3, to_stride = cols + 1;
        std::vector<unsigned char> from(static_cast<std::size_t>(20 * from_stride) * element);
        for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<unsigned char>(i * 7 + 1);
        std::vector<unsigned char> to(static_cast<std::size_t>(20 * to_stride) * element, 0xEE), expected = to;
        for (std::int64_t r = 0; r < rows; ++r)
          for (std::size_t b = 0; b < static_cast<std::size_t>(cols) * element; ++b)
            expected[static_cast<std::size_t>(r * to_stride) * element + b] =
                from[static_cast<std::size_t>(r * from_stride) * element + b];
        quant::copy_matrix(from.data(), from_stride, to.data(), to_stride, rows, cols, element);
        EXPECT_EQ(to, expected) << rows << " x " << cols << " of " << element;
      }
}

}  // namespace
}  // namespace tessera::comm
