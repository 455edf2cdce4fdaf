// exp in plain arithmetic that the compiler can vectorise. The result does not depend on the position of an element.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

#include "tessera/base/host_device.h"

namespace tessera::ops {

namespace detail {
inline constexpr float kRound = 0x1.8p23f;  // x + kRound holds the integer nearest to x in its low bits
// Returns exp(r) with r = x - n ln(2) and n = shifted - kRound.
TESSERA_HOST_DEVICE inline float exponential_of_rest(float x, float shifted) {
  const float n = shifted - kRound;
  const float r = std::fma(n, -0x1.7f7d1cp-20f, std::fma(n, -0x1.62e4p-1f, x));  // ln(2) in two parts
  float q = 0x1.6d117cp-10f;
  q = std::fma(q, r, 0x1.120be2p-7f);
  q = std::fma(q, r, 0x1.555518p-5f);
  q = std::fma(q, r, 0x1.5554dcp-3f);
  q = std::fma(q, r, 0.5f);
  return std::fma(q * r, r, r) + 1.0f;
}
}  // namespace detail

// Returns exp(x) with an error of at most 1.1 units in the last place of fp32 (tests/ops/flat_ops_test.cpp tests every
// 257th float). exp(x) = 2^n exp(r), where n is the integer nearest to x log2(e) and |r| <= ln(2)/2. exp(r) = 1 + r +
// r^2 q(r), where q is the Chebyshev interpolant of degree 4 (relative error below 2e-9). The result is multiplied by
// 2^n in two factors, so that it underflows gradually and overflows to infinity. NaN stays NaN.
TESSERA_HOST_DEVICE inline float exponential(float x) {
  x = x < -104.0f ? -104.0f : x;
  x = x > 89.0f ? 89.0f : x;
  const float shifted = std::fma(x, 0x1.715476p0f, detail::kRound);
  const float e = detail::exponential_of_rest(x, shifted);
  const auto power =
      static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(detail::kRound));
  const std::int32_t half = power >> 1;
  const float low = std::bit_cast<float>(static_cast<std::uint32_t>(half + 127) << 23);
  const float high = std::bit_cast<float>(static_cast<std::uint32_t>(power - half + 127) << 23);
  return e * low * high;
}
TESSERA_HOST_DEVICE inline double exponential(double x) {
  return std::exp(x);
}

// ordinary_exponential(x) returns exponential(x) with fewer instructions for |x| < kOrdinaryExponent. It multiplies
// exactly once by 2^n and does not clamp x.
inline constexpr float kOrdinaryExponent = 86.0f;
TESSERA_HOST_DEVICE inline float ordinary_exponential(float x) {
  const float shifted = std::fma(x, 0x1.715476p0f, detail::kRound);
  const float e = detail::exponential_of_rest(x, shifted);
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(e) + (std::bit_cast<std::uint32_t>(shifted) << 23));
}

}  // namespace tessera::ops
