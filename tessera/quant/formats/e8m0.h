// E8M0 is the scale type of MXFP8. A code is the power of two 2^(code - 127); code 255 is NaN (OCP "Microscaling
// Formats (MX)").
#pragma once
#include <bit>
#include <cstdint>

#include "tessera/base/host_device.h"

namespace tessera::quant {

struct E8M0 {
  // Returns the code of the smallest power of two that is at least `value`. `value` is not negative. Infinity and
  // values above 2^127 give 2^127; zero gives 2^-127.
  TESSERA_HOST_DEVICE static constexpr std::uint8_t encode_up(float value) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t exponent = word >> 23, mantissa = word & 0x7FFFFF;
    if (exponent == 255) return mantissa != 0 ? 255 : 254;
    if (exponent == 0) return mantissa <= 0x400000 ? 0 : 1;  // 0x400000 is 2^-127
    return static_cast<std::uint8_t>(exponent == 254 || mantissa == 0 ? exponent : exponent + 1);
  }
  // Returns 2^(code - 127).
  TESSERA_HOST_DEVICE static constexpr float decode(std::uint8_t code) {
    if (code == 255) return std::bit_cast<float>(0x7FC00000U);
    return std::bit_cast<float>(code == 0 ? 0x00400000U : static_cast<std::uint32_t>(code) << 23);
  }
  // Returns 2^(127 - code). Values are multiplied by this number before they are rounded.
  TESSERA_HOST_DEVICE static constexpr float multiplier(std::uint8_t code) {
    return code == 255 ? decode(255) : decode(static_cast<std::uint8_t>(254 - code));
  }
};

}  // namespace tessera::quant
