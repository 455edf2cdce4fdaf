// Rounding between floating types. A conversion rounds once, to nearest even. Host and device code give the same bits.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "tessera/base/host_device.h"
#include "tessera/quant/bfloat16.h"

namespace tessera::quant {

// Returns a float that, when rounded to bf16, gives the bf16 number nearest to `value`. The function truncates to a
// float and sets the float's last bit if the truncation loses information. The second rounding therefore cannot mistake
// the float for a tie. The method is rounding to odd (Boldo & Melquiond, "Emulation of a FMA and correctly rounded
// sums", IEEE Transactions on Computers 57(4), 2008).
TESSERA_HOST_DEVICE inline float round_to_odd(double value) {
  const auto nearest = static_cast<float>(value);
  auto word = std::bit_cast<std::uint32_t>(nearest);
  word -= std::fabs(static_cast<double>(nearest)) > std::fabs(value) ? 1u : 0u;
  word |= static_cast<double>(nearest) != value ? 1u : 0u;
  return std::bit_cast<float>(word);
}

// Converts `value` to another type and rounds once. A NaN stays a NaN.
template <typename To, typename From>
TESSERA_HOST_DEVICE inline To round_to(From value) {
  if constexpr (std::is_same_v<To, From>)
    return value;
  else if constexpr (std::is_same_v<From, bfloat16>)
    return static_cast<To>(static_cast<float>(value));
  else if constexpr (std::is_same_v<To, bfloat16> && std::is_same_v<From, double>)
    return bfloat16(round_to_odd(value));
  else
    return static_cast<To>(value);
}

}  // namespace tessera::quant
