// The bf16 storage type. Conversions round to nearest even, and a NaN stays a NaN. Conversions use integer arithmetic
// only, so every platform gives the same bits.
#pragma once
#include <bit>
#include <cstdint>

#include "tessera/base/host_device.h"

namespace tessera::quant {

struct bfloat16 {
  std::uint16_t bits = 0;

  bfloat16() = default;
  TESSERA_HOST_DEVICE explicit bfloat16(float value) : bits(round(value)) {}
  TESSERA_HOST_DEVICE explicit operator float() const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }

  TESSERA_HOST_DEVICE static std::uint16_t round(float value) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t rounded = word + 0x7FFFu + ((word >> 16) & 1u);
    const bool is_nan = value != value;
    return static_cast<std::uint16_t>((is_nan ? word | 0x00400000u : rounded) >> 16);
  }
};
static_assert(sizeof(bfloat16) == 2);

}  // namespace tessera::quant
