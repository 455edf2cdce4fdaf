// Compares ordered sums, extremes and copies with plain loops, bit by bit, at every alignment.
#include "tessera/quant/elementwise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/quant/values.h"

namespace tessera::quant {
namespace {

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

TYPED_TEST(Sums, AddInOrderForAnyNumberOfPartsAndAnyPosition) {
  for (const int parts : {1, 2, 3, 7, 8, 9, 16, 19})
    for (const std::int64_t count : {0, 1, 5, 31, 2048, 5003})
      for (const bool accumulate : {false, true}) {
        check_sums<float, TypeParam>(parts, count, accumulate, count % 4);
        check_sums<double, TypeParam>(parts, count, accumulate, (count + parts) % 4);
      }
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

TYPED_TEST(Sums, ExtremesKeepNaN) {
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

TEST(CopyMatrix, CopiesOnlyTheBox) {
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
        copy_matrix(from.data(), from_stride, to.data(), to_stride, rows, cols, element);
        EXPECT_EQ(to, expected) << rows << " x " << cols << " of " << element;
      }
}

}  // namespace
}  // namespace tessera::quant
