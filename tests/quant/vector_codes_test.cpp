// Checks that arithmetic on whole vectors on the host gives the same bits as on single elements.
#include "tessera/quant/cuda/vector_codes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace tessera::quant {
namespace {

TEST(VectorCodes, OfFourBitsMatchTheDefinition) {
  for (std::uint64_t word = 0; word < (std::uint64_t{1} << 32); word += 509) {
    const bool is_nan = (word & 0x7FFFFFFF) > 0x7F800000;
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(word | (is_nan ? 0x00400000 : 0)));
    ASSERT_EQ(encode_e2m1(value), E2M1::encode(value)) << std::hexfloat << value;
  }
  for (const float tie : {0.0F, 0.25F, 0.75F, 1.25F, 1.75F, 2.5F, 3.5F, 5.0F, 6.0F, 7.0F, INFINITY, NAN})
    for (const float value : {tie, std::nextafter(tie, 0.0F), std::nextafter(tie, 9.0F)})
      for (const float signed_value : {value, -value})
        ASSERT_EQ(encode_e2m1(signed_value), E2M1::encode(signed_value)) << std::hexfloat << signed_value;
}

template <Element kElement>
void check_vectors() {
  constexpr int kBits = kElement == Element::e2m1 ? 4 : 8;
  for (std::uint32_t first = 0; first < (1U << kBits); first += 8) {
    std::uint32_t words[kCodeWords<kElement>] = {};
    for (std::uint32_t i = 0; i < 8; ++i) words[i * kBits / 32] |= (first + i) << (i * kBits % 32);
    float values[8];
    decode_vector<kElement>(words, values);
    for (std::uint32_t i = 0; i < 8; ++i) {
      const float expected = decode(kElement, static_cast<std::uint8_t>(first + i));
      if (std::isnan(expected))
        EXPECT_TRUE(std::isnan(values[i]));
      else
        EXPECT_EQ(std::bit_cast<std::uint32_t>(values[i]), std::bit_cast<std::uint32_t>(expected));
    }
    std::uint32_t again[kCodeWords<kElement>];
    encode_vector<kElement>(values, again);
    for (std::uint32_t i = 0; i < 8; ++i)
      EXPECT_EQ(again[i * kBits / 32] >> (i * kBits % 32) & ((1U << kBits) - 1), encode(kElement, values[i]));
  }
}

TEST(VectorCodes, AreInMemoryOrder) {
  check_vectors<Element::e4m3>();
  check_vectors<Element::e5m2>();
  check_vectors<Element::e2m1>();
}

TEST(VectorCodes, GreaterMagnitudesIgnoreNans) {
  const std::uint32_t pair = round_pair(-3, NAN), amaxes = round_pair(2, 1);
  const std::uint32_t greater = greater_magnitudes(amaxes, pair);
  EXPECT_EQ(low_half(greater), 3);
  EXPECT_EQ(high_half(greater), 1);
}

TEST(VectorCodes, SquaresOfBytesAreTransposed) {
  std::uint32_t words[4] = {};
  for (std::uint32_t i = 0; i < 16; ++i) words[i / 4] |= (i + 1) << (8 * (i % 4));
  transpose_bytes(words);
  for (std::uint32_t i = 0; i < 16; ++i) EXPECT_EQ(words[i % 4] >> (8 * (i / 4)) & 0xFF, i + 1);
}

}  // namespace
}  // namespace tessera::quant
