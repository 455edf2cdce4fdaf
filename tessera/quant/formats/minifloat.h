// Floating types of 8 and 4 bits with a sign, an exponent and a few bits of mantissa. E4M3, E5M2 and E2M1 follow the
// OCP specifications "8-bit Floating Point (OFP8)" and "Microscaling Formats (MX)".
#pragma once
#include <bit>
#include <cstdint>
#include <limits>

#include "tessera/base/host_device.h"

namespace tessera::quant {

// Returns 2^exponent. The exponent is from -126 to 127.
TESSERA_HOST_DEVICE constexpr float power_of_two(int exponent) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
}

// `kMantissa` is the number of mantissa bits, and `kBias` is the bias of the exponent. The codes of positive numbers
// increase with their values, from 0 to `kGreatest`, the greatest finite number. `kSign` is the sign bit.
template <int kMantissa, int kBias, std::uint8_t kGreatest, std::uint8_t kSign, std::uint8_t kNan>
struct Minifloat {
  // Returns the code of the number nearest to `value`; a tie is rounded to even. Values beyond the greatest finite
  // number, and infinity, give the greatest finite number. A NaN gives kNan.
  TESSERA_HOST_DEVICE static constexpr std::uint8_t encode(float value) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t magnitude = word & 0x7FFFFFFF;
    const auto limit = std::bit_cast<std::uint32_t>(greatest());
    const std::uint32_t bounded = magnitude < limit ? magnitude : limit;
    const int least = 1 - kBias;  // exponent of the subnormal and of the smallest normal numbers
    const int own_exponent = static_cast<int>(bounded >> 23) - 127,
              exponent = own_exponent < least ? least : own_exponent;
    // `units` is the value in units of its last place, at most 2^(kMantissa + 1). Adding 2^23 rounds it to an integer,
    // to nearest even. This integer is in the last bits of the sum.
    const float units = std::bit_cast<float>(bounded) * power_of_two(kMantissa - exponent);
    const std::uint32_t rounded = std::bit_cast<std::uint32_t>(units + 0x1p23F) - std::bit_cast<std::uint32_t>(0x1p23F);
    const std::uint32_t code = rounded + (static_cast<std::uint32_t>(exponent - least) << kMantissa);
    // At this point, the code of a NaN is kGreatest. Combining its bits with kNan by OR gives kNan, because kNan has
    // all bits of kGreatest.
    const std::uint32_t sign = word >> 31 != 0 ? kSign : 0U;
    return static_cast<std::uint8_t>(code | (magnitude > 0x7F800000 ? kNan : sign));
  }

  // Returns the exact number of a code.
  TESSERA_HOST_DEVICE static constexpr float decode(std::uint8_t code) {
    const std::uint32_t sign = (code & kSign) != 0 ? 0x80000000U : 0U;
    const std::uint32_t magnitude = code & (kSign - 1U);
    const std::uint32_t exponent = magnitude >> kMantissa, mantissa = magnitude & ((1U << kMantissa) - 1);
    float value = 0;
    if (magnitude > kGreatest)
      value = kHasInfinity && mantissa == 0 ? std::numeric_limits<float>::infinity()
                                            : std::numeric_limits<float>::quiet_NaN();
    else if (exponent == 0)
      value = static_cast<float>(mantissa) * power_of_two(1 - kBias - kMantissa);
    else
      value = static_cast<float>((1U << kMantissa) | mantissa) *
              power_of_two(static_cast<int>(exponent) - kBias - kMantissa);
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | sign);
  }

  TESSERA_HOST_DEVICE static constexpr float greatest() { return decode(kGreatest); }

 private:
  // Whether the code after the greatest finite number is infinity.
  static constexpr bool kHasInfinity = (kGreatest & ((1U << kMantissa) - 1)) == (1U << kMantissa) - 1 && kMantissa == 2;
};

using E4M3 = Minifloat<3, 7, 0x7E, 0x80, 0x7F>;   // greatest 448; no infinity
using E5M2 = Minifloat<2, 15, 0x7B, 0x80, 0x7F>;  // greatest 57344
using E2M1 = Minifloat<1, 1, 0x07, 0x08, 0x07>;   // 0, 0.5, 1, 1.5, 2, 3, 4, 6; neither infinity nor NaN

}  // namespace tessera::quant
