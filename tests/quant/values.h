// Values of test buffers, and element types as test parameters.
#pragma once
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "tessera/quant/bfloat16.h"
#include "tessera/quant/dtype.h"

namespace tessera::quant {

template <typename T>
struct TypeOf;
template <>
struct TypeOf<std::uint8_t> {
  static constexpr DType value = DType::u8;
};
template <>
struct TypeOf<std::int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct TypeOf<std::int64_t> {
  static constexpr DType value = DType::i64;
};
template <>
struct TypeOf<bfloat16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct TypeOf<float> {
  static constexpr DType value = DType::fp32;
};
template <>
struct TypeOf<double> {
  static constexpr DType value = DType::fp64;
};

using AllTypes = testing::Types<std::uint8_t, std::int32_t, std::int64_t, bfloat16, float, double>;

// Among three adjacent ranks, the values of two ranks cancel. The value of the third rank is small, and loses its last
// bits in fp32 if it is added between them. The sum therefore depends on the order. Sums of random bf16 values would be
// exact in fp32 in any order.
inline float bfloat16_value(int rank, std::int64_t index, std::uint32_t random) {
  const auto large = static_cast<float>(65536 + 512 * (index % 100));
  const auto small =
      static_cast<float>(static_cast<int>(random % 509) - 254) / static_cast<float>(1 << (random >> 20) % 14);
  switch ((index + rank) % 3) {
    case 0:
      return large;
    case 1:
      return small;
    default:
      return -large;
  }
}

// Returns element `index` of rank `rank`. The elements have very different exponents, so the bits of a sum depend on
// the order of summation.
template <typename T>
T value_of(int rank, std::int64_t index) {
  auto h = static_cast<std::uint32_t>(index) * 2654435761u + static_cast<std::uint32_t>(rank + 1) * 0x9E3779B9u;
  h ^= h >> 15;
  h *= 0x2C1B3C6Du;
  h ^= h >> 13;
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(h);
  else if constexpr (std::is_same_v<T, bfloat16>)
    return T(bfloat16_value(rank, index, h));
  else
    return static_cast<T>(static_cast<int>(h % 2000003) - 1000001) / static_cast<T>(1 << ((h >> 20) % 12)) / T(3);
}

template <typename T>
std::vector<T> values_of(int rank, std::int64_t begin, std::int64_t count) {
  std::vector<T> values(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) values[static_cast<std::size_t>(i)] = value_of<T>(rank, begin + i);
  return values;
}

// Compares bit patterns, including the bits of NaNs.
template <typename T>
testing::AssertionResult same_bits(const std::vector<T>& got, const std::vector<T>& expected) {
  if (got.size() != expected.size())
    return testing::AssertionFailure() << got.size() << " elements, expected " << expected.size();
  for (std::size_t i = 0; i < got.size(); ++i)
    if (std::memcmp(&got[i], &expected[i], sizeof(T)) != 0)
      return testing::AssertionFailure() << "element " << i << " of " << got.size() << ": "
                                         << testing::PrintToString(got[i]) << ", expected "
                                         << testing::PrintToString(expected[i]);
  return testing::AssertionSuccess();
}

}  // namespace tessera::quant
