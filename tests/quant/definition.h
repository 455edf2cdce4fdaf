// A second implementation of the number formats for tests, written from the definitions in docs/formats.md. It encodes
// one element at a time by a search over all codes, and shares no code with tessera/quant. It computes an fp32
// operation of the definition in double and then rounds once to fp32. The result equals that of the fp32 operation,
// because a double has more than twice the mantissa bits of fp32.
#pragma once
#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "tessera/quant/formats/encoding.h"

namespace tessera::quant::definition {

// An element type: the finite values, indexed by the code of their magnitude, and the special codes.
struct Type {
  std::vector<double> magnitudes;
  std::uint8_t sign = 0x80;
  std::uint8_t nan = 0x7F;

  double greatest() const { return magnitudes.back(); }
};

// Returns the first `count` finite magnitudes of a type with `mantissa_bits` mantissa bits. `bias` is the bias of the
// exponent.
inline Type make_type(int count, int mantissa_bits, int bias, std::uint8_t sign, std::uint8_t nan) {
  Type type{.magnitudes = {}, .sign = sign, .nan = nan};
  for (int code = 0; code < count; ++code) {
    const int field = code >> mantissa_bits, mantissa = code % (1 << mantissa_bits);
    const double fraction = std::ldexp(mantissa, -mantissa_bits);
    type.magnitudes.push_back(field == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, field - bias));
  }
  return type;
}

inline const Type& type_of(Element element) {
  static const Type e4m3 = make_type(0x7E + 1, 3, 7, 0x80, 0x7F), e5m2 = make_type(0x7B + 1, 2, 15, 0x80, 0x7F),
                    e2m1{.magnitudes = {0, 0.5, 1, 1.5, 2, 3, 4, 6}, .sign = 0x8, .nan = 0x7};
  return element == Element::e4m3 ? e4m3 : element == Element::e5m2 ? e5m2 : e2m1;
}

// Returns the code whose value is nearest to `value`; a tie is rounded to even. Values above the greatest finite value,
// and infinity, give the code of the greatest finite value.
inline std::uint8_t encode(Element element, double value) {
  const Type& type = type_of(element);
  if (std::isnan(value)) return type.nan;
  const double magnitude = std::min(std::fabs(value), type.greatest());
  const auto above = std::lower_bound(type.magnitudes.begin(), type.magnitudes.end(), magnitude);
  auto code = static_cast<std::uint8_t>(above - type.magnitudes.begin());
  if (code > 0) {
    const double middle = (type.magnitudes[code - 1U] + type.magnitudes[code]) / 2;
    if (magnitude < middle || (magnitude == middle && code % 2 == 1)) --code;
  }
  return static_cast<std::uint8_t>(code + (std::signbit(value) ? type.sign : 0));
}

inline double decode(Element element, std::uint8_t code) {
  const Type& type = type_of(element);
  const auto magnitude = static_cast<std::size_t>(code & (type.sign - 1));
  double value = std::numeric_limits<double>::quiet_NaN();
  if (magnitude < type.magnitudes.size()) value = type.magnitudes[magnitude];
  if (element == Element::e5m2 && magnitude == 0x7C) value = std::numeric_limits<double>::infinity();
  return (code & type.sign) != 0 ? -value : value;
}

// Returns the fp32 result of one operation from its double result. If the result exceeds fp32, the definition uses
// FLT_MAX.
inline double rounded(double value) {
  return std::fabs(value) > static_cast<double>(FLT_MAX) ? std::copysign(static_cast<double>(FLT_MAX), value)
                                                         : static_cast<double>(static_cast<float>(value));
}

// The fp32 numbers nearest to 1/448, 1/6 and 1/2688.
inline const double kOneOver448 = std::bit_cast<float>(0x3B124925U), kOneOver6 = std::bit_cast<float>(0x3E2AAAABU),
                    kOneOver2688 = std::bit_cast<float>(0x39C30C31U);

// Returns 2^(code - 127).
inline double decode_e8m0(std::uint8_t code) {
  return code == 255 ? std::numeric_limits<double>::quiet_NaN() : std::ldexp(1.0, code - 127);
}

// Returns the exponent of the smallest power of two that is at least a positive finite value.
inline int exponent_above(double value) {
  int exponent = 0;
  return std::frexp(value, &exponent) == 0.5 ? exponent - 1 : exponent;
}

// Returns the E8M0 code of a value that is not negative.
inline std::uint8_t encode_e8m0(double value) {
  if (std::isnan(value)) return 255;
  if (value == 0) return 0;
  return static_cast<std::uint8_t>(std::isinf(value) ? 254 : std::clamp(exponent_above(value) + 127, 0, 254));
}

inline double fp8_multiplier(double amax, double greatest, bool powers_of_two) {
  if (std::isnan(amax) || std::isinf(amax) || amax == 0) return 1;
  double multiplier = rounded(greatest / amax);
  int exponent = 0;
  const double fraction = std::frexp(multiplier, &exponent);
  if (powers_of_two) multiplier = std::ldexp(multiplier / fraction, -1);
  return multiplier;
}

// The multipliers that encode and decode the elements of a tile, and the stored scale.
struct Scales {
  double multiplier = 1, decode = 1;
  std::uint32_t stored = 0;
};

inline Scales nvfp4_scales(double amax, double tensor_amax) {
  const double quotient = std::isinf(tensor_amax) || tensor_amax == 0 ? 0 : rounded(2688.0 / tensor_amax);
  const double whole = quotient == 0 ? 1 : quotient;
  const double whole_sixth = rounded(whole * kOneOver6);
  const std::uint8_t code = definition::encode(Element::e4m3, rounded(amax * whole_sixth));
  const double tile = definition::decode(Element::e4m3, code), whole_inverse = rounded(1 / whole);
  const double product = rounded(tile * whole_inverse);
  // The product is exact in double, because its factors have 4 and at most 24 bits. It may exceed the largest float.
  const double exact = tile * tensor_amax;
  const double tile_amax = exact > static_cast<double>(FLT_MAX)
                               ? std::ldexp(static_cast<double>(static_cast<float>(std::ldexp(exact, -10))), 10)
                               : static_cast<double>(static_cast<float>(exact));
  return {.multiplier = product == 0 ? static_cast<double>(FLT_MAX) : rounded(1 / product),
          .decode = static_cast<double>(static_cast<float>(tile_amax * kOneOver2688)),
          .stored = code};
}

inline Scales tile_scales(const Encoding& encoding, double amax, double tensor_amax) {
  if (encoding.scale == Scale::e4m3) return nvfp4_scales(amax, tensor_amax);
  if (encoding.scale == Scale::e8m0) {
    const std::uint8_t code = encode_e8m0(std::isinf(amax) ? amax : rounded(amax * kOneOver448));
    return {.multiplier = std::ldexp(1.0, 127 - code), .decode = decode_e8m0(code), .stored = code};
  }
  const double multiplier = fp8_multiplier(amax, type_of(encoding.element).greatest(), encoding.powers_of_two);
  const auto inverse = static_cast<float>(1 / multiplier);
  return {.multiplier = multiplier, .decode = inverse, .stored = std::bit_cast<std::uint32_t>(inverse)};
}

}  // namespace tessera::quant::definition
