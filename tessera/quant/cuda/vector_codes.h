// Conversions of several adjacent elements that one GPU thread holds. minifloat.h and bfloat16.h define the bits. The
// GPU's conversion instructions give the same bits.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

#include "tessera/base/host_device.h"
#include "tessera/quant/bfloat16.h"
#include "tessera/quant/formats/encoding.h"

namespace tessera::quant {

// The number of 32-bit words that hold eight elements.
template <Element kElement>
inline constexpr int kCodeWords = kElement == Element::e2m1 ? 1 : 2;

// Like E2M1::encode with fewer operations. `value` is the result of arithmetic, so it is never a signalling NaN.
TESSERA_HOST_DEVICE inline std::uint32_t encode_e2m1(float value) {
  constexpr std::uint32_t kOne = 0x3F800000;               // the bits of 1.0
  const float limited = fmaxf(fminf(value, 6.0F), -6.0F);  // 6 for a NaN
  const auto word = std::bit_cast<std::uint32_t>(limited);
  const std::uint32_t exponent = word & 0x7F800000, scale = exponent < kOne ? kOne : exponent;
  // One unit in the last place of `magic` is the distance between adjacent E2M1 numbers near the value. The addition
  // therefore rounds to a multiple of this distance.
  const std::uint32_t magic = scale + (22U << 23);
  const auto sum = std::bit_cast<std::uint32_t>(fabsf(limited) + std::bit_cast<float>(magic));
  return (sum - magic + ((scale - kOne) >> 22)) | (word >> 28 & 8);
}

namespace detail {

// Encodes two fp8 codes; the code of `low` is in the low byte.
template <Element kElement>
TESSERA_HOST_DEVICE inline std::uint32_t encode_pair(float low, float high) {
#ifdef __CUDA_ARCH__
  std::uint16_t pair;
  if constexpr (kElement == Element::e4m3)
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  else
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return encode(kElement, low) | static_cast<std::uint32_t>(encode(kElement, high)) << 8;
#endif
}

// Decodes two fp8 codes; the inverse of encode_pair.
template <Element kElement>
TESSERA_HOST_DEVICE inline void decode_pair(std::uint32_t pair, float& low, float& high) {
#ifdef __CUDA_ARCH__
  std::uint32_t halves;
  if constexpr (kElement == Element::e4m3)
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<std::uint16_t>(pair)));
  else
    asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(halves) : "h"(static_cast<std::uint16_t>(pair)));
  asm("cvt.f32.f16 %0, %1;" : "=f"(low) : "h"(static_cast<std::uint16_t>(halves)));
  asm("cvt.f32.f16 %0, %1;" : "=f"(high) : "h"(static_cast<std::uint16_t>(halves >> 16)));
#else
  low = decode(kElement, static_cast<std::uint8_t>(pair));
  high = decode(kElement, static_cast<std::uint8_t>(pair >> 8));
#endif
}

}  // namespace detail

// Encodes eight elements in memory order.
template <Element kElement>
TESSERA_HOST_DEVICE inline void encode_vector(const float (&values)[8], std::uint32_t (&words)[kCodeWords<kElement>]) {
  if constexpr (kElement == Element::e2m1) {
    words[0] = 0;
    for (int i = 0; i < 8; ++i) words[0] |= encode_e2m1(values[i]) << (4 * i);
  } else {
    for (int w = 0; w < 2; ++w)
      words[w] = detail::encode_pair<kElement>(values[4 * w], values[4 * w + 1]) |
                 detail::encode_pair<kElement>(values[4 * w + 2], values[4 * w + 3]) << 16;
  }
}

// Decodes eight elements; the inverse of encode_vector.
template <Element kElement>
TESSERA_HOST_DEVICE inline void decode_vector(const std::uint32_t (&words)[kCodeWords<kElement>], float (&values)[8]) {
  if constexpr (kElement == Element::e2m1) {
    // The exponent and mantissa bits of the code are moved to the last exponent bits and the first mantissa bit of
    // fp32. The exponent biases of the two types differ by 126.
    for (int i = 0; i < 8; ++i) {
      const std::uint32_t code = words[0] >> (4 * i);
      values[i] = std::bit_cast<float>((code & 7) << 22 | (code & 8) << 28) * 0x1p126F;
    }
  } else {
    for (int i = 0; i < 8; i += 2)
      detail::decode_pair<kElement>(words[i / 4] >> (8 * (i % 4)) & 0xFFFF, values[i], values[i + 1]);
  }
}

// Returns decode(encode(magnitude)) with fewer operations: the value of the element type that is nearest to a number
// that is not negative. A NaN gives the greatest finite value.
template <Element kElement>
TESSERA_HOST_DEVICE inline float round_magnitude(float magnitude) {
  constexpr int kMantissa = kElement == Element::e4m3 ? 3 : kElement == Element::e5m2 ? 2 : 1;
  constexpr float kMinNormal = kElement == Element::e4m3 ? 0x1p-6F : kElement == Element::e5m2 ? 0x1p-14F : 1.0F;
  constexpr float kShift = power_of_two(23 - kMantissa);
  const float limited = fminf(magnitude, greatest_of(kElement));
  // One unit in the last place of `power * kShift` is the distance between adjacent numbers near the value, so the
  // first sum is rounded to a multiple of this distance. The products and the second sum are exact.
  const auto power = std::bit_cast<float>(std::bit_cast<std::uint32_t>(fmaxf(limited, kMinNormal)) & 0x7F800000);
  return fmaf(power, -kShift, fmaf(power, kShift, limited));
}

// Rounds two numbers to bf16, to nearest even; the result of `low` is in the low half. A NaN gives the NaN 0x7FFF.
TESSERA_HOST_DEVICE inline std::uint32_t round_pair(float low, float high) {
#ifdef __CUDA_ARCH__
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  const auto round = [](float value) -> std::uint32_t { return value != value ? 0x7FFF : bfloat16::round(value); };
  return round(low) | round(high) << 16;
#endif
}
TESSERA_HOST_DEVICE inline float low_half(std::uint32_t pair) {
  return std::bit_cast<float>(pair << 16);
}
TESSERA_HOST_DEVICE inline float high_half(std::uint32_t pair) {
  return std::bit_cast<float>(pair & 0xFFFF0000U);
}

// Returns a pair of bf16 numbers: for each half, max(amaxes, |pair|). NaNs in `pair` are ignored. The numbers in
// `amaxes` are neither negative nor NaN.
TESSERA_HOST_DEVICE inline std::uint32_t greater_magnitudes(std::uint32_t amaxes, std::uint32_t pair) {
  const std::uint32_t magnitudes = pair & 0x7FFF7FFFU;
#ifdef __CUDA_ARCH__
  std::uint32_t greater;
  asm("max.bf16x2 %0, %1, %2;" : "=r"(greater) : "r"(amaxes), "r"(magnitudes));
  return greater;
#else
  const auto greater = [](float amax, float magnitude) { return magnitude > amax ? magnitude : amax; };
  return round_pair(greater(low_half(amaxes), low_half(magnitudes)), greater(high_half(amaxes), high_half(magnitudes)));
#endif
}

// Like greater_magnitudes, but a NaN in `pair` or in `amaxes` gives the NaN 0x7FFF.
TESSERA_HOST_DEVICE inline std::uint32_t greater_or_nan(std::uint32_t amaxes, std::uint32_t pair) {
  const std::uint32_t magnitudes = pair & 0x7FFF7FFFU;
#ifdef __CUDA_ARCH__
  std::uint32_t greater;
  asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(greater) : "r"(amaxes), "r"(magnitudes));
  return greater;
#else
  const auto greater = [](std::uint32_t amax, std::uint32_t magnitude) {
    const std::uint32_t result = magnitude > amax ? magnitude : amax;  // NaNs have the greatest bits
    return result > 0x7F80 ? 0x7FFFU : result;
  };
  return greater(amaxes & 0xFFFF, magnitudes & 0xFFFF) | greater(amaxes >> 16, magnitudes >> 16) << 16;
#endif
}
// Returns the greater number of a pair that is not negative, or NaN if one of them is NaN.
TESSERA_HOST_DEVICE inline float greater_half(std::uint32_t pair) {
  return low_half(greater_or_nan(pair, pair >> 16));
}

// Computes CUDA's __byte_perm. Byte i of the result is byte (selector >> 4 * i & 7) of the eight bytes of `low` and
// `high`.
TESSERA_HOST_DEVICE inline std::uint32_t permute_bytes(std::uint32_t low, std::uint32_t high, std::uint32_t selector) {
#ifdef __CUDA_ARCH__
  return __byte_perm(low, high, selector);
#else
  const std::uint64_t bytes = low | static_cast<std::uint64_t>(high) << 32;
  std::uint32_t result = 0;
  for (int i = 0; i < 4; ++i)
    result |= static_cast<std::uint32_t>(bytes >> 8 * (selector >> (4 * i) & 7) & 0xFF) << (8 * i);
  return result;
#endif
}

// Transposes 4 x 4 bytes: word i of the result holds byte i of each input word, in the order of the words.
TESSERA_HOST_DEVICE inline void transpose_bytes(std::uint32_t (&words)[4]) {
  const std::uint32_t upper01 = permute_bytes(words[0], words[1], 0x5140);
  const std::uint32_t upper23 = permute_bytes(words[0], words[1], 0x7362);
  const std::uint32_t lower01 = permute_bytes(words[2], words[3], 0x5140);
  const std::uint32_t lower23 = permute_bytes(words[2], words[3], 0x7362);
  words[0] = permute_bytes(upper01, lower01, 0x5410);
  words[1] = permute_bytes(upper01, lower01, 0x7632);
  words[2] = permute_bytes(upper23, lower23, 0x5410);
  words[3] = permute_bytes(upper23, lower23, 0x7632);
}

}  // namespace tessera::quant
