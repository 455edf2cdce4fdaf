// An encoding defines how a matrix is stored in elements of 8 or 4 bits: the element type, the type of the scales, and
// the tile of elements that share a scale.
#pragma once
#include <cfloat>
#include <cmath>
#include <compare>
#include <cstdint>

#include "tessera/base/host_device.h"
#include "tessera/quant/bfloat16.h"
#include "tessera/quant/formats/e8m0.h"
#include "tessera/quant/formats/minifloat.h"

namespace tessera::quant {

enum class Element : std::uint8_t { e4m3, e5m2, e2m1 };

// How the scale of a tile is stored.
//   fp32  the number by which an element is multiplied
//   e8m0  a power of two, in one byte
//   e4m3  one byte, plus one fp32 number for the whole matrix: its amax
enum class Scale : std::uint8_t { fp32, e8m0, e4m3 };

// Rows and columns of elements that share a scale. Tiles at the edges of a matrix may be smaller. 0 means all rows or
// all columns.
struct ScaleTile {
  std::int64_t rows = 0, cols = 0;
  auto operator<=>(const ScaleTile&) const = default;
};

struct Encoding {
  Element element = Element::e4m3;
  Scale scale = Scale::fp32;
  ScaleTile tile;
  bool powers_of_two = false;  // whether fp32 scales are rounded down to powers of two

  auto operator<=>(const Encoding&) const = default;
};

// The scale of a tile in its two forms. `stored` holds the bits that are written to the array of scales.
struct TileScale {
  float multiplier = 1;  // values are multiplied by this number before they are rounded
  std::uint32_t stored = 0;
};

TESSERA_HOST_DEVICE constexpr int elements_in_byte(Element element) {
  return element == Element::e2m1 ? 2 : 1;
}

TESSERA_HOST_DEVICE constexpr float greatest_of(Element element) {
  switch (element) {
    case Element::e4m3:
      return E4M3::greatest();
    case Element::e5m2:
      return E5M2::greatest();
    case Element::e2m1:
      return E2M1::greatest();
  }
  return 0;
}

TESSERA_HOST_DEVICE constexpr std::uint8_t encode(Element element, float value) {
  switch (element) {
    case Element::e4m3:
      return E4M3::encode(value);
    case Element::e5m2:
      return E5M2::encode(value);
    case Element::e2m1:
      return E2M1::encode(value);
  }
  return 0;
}

TESSERA_HOST_DEVICE constexpr float decode(Element element, std::uint8_t code) {
  switch (element) {
    case Element::e4m3:
      return E4M3::decode(code);
    case Element::e5m2:
      return E5M2::decode(code);
    case Element::e2m1:
      return E2M1::decode(code);
  }
  return 0;
}

// Returns the multiplier that maps values of at most `amax` to a type whose greatest number is `greatest`. Returns 1 if
// `amax` is 0, infinite or NaN.
TESSERA_HOST_DEVICE inline float fp8_multiplier(float amax, float greatest, bool powers_of_two) {
  if (!(amax > 0) || amax > FLT_MAX) return 1;
  float multiplier = greatest / amax;
  if (multiplier > FLT_MAX) multiplier = FLT_MAX;
  if (powers_of_two) multiplier = std::bit_cast<float>(std::bit_cast<std::uint32_t>(multiplier) & 0xFF800000U);
  return multiplier;
}

// Returns the multiplier of NVFP4 for a whole matrix. With this multiplier, the scale of the tile with the greatest
// amax is near 448, the greatest E4M3 number. 2688 = 6 * 448, where 6 is the greatest E2M1 number.
TESSERA_HOST_DEVICE inline float nvfp4_multiplier(float tensor_amax) {
  const float quotient = tensor_amax > 0 ? fminf(2688.0F / tensor_amax, FLT_MAX) : 0;
  return quotient > 0 ? quotient : 1;
}

// Returns the scale of a tile. `amax` is the greatest magnitude in the tile. `tensor_amax` is the greatest magnitude in
// the matrix; only e4m3 scales use it. Both magnitudes ignore NaNs.
TESSERA_HOST_DEVICE inline TileScale tile_scale(const Encoding& encoding, float amax, float tensor_amax) {
  TileScale result;
  if (encoding.scale == Scale::fp32) {
    result.multiplier = fp8_multiplier(amax, greatest_of(encoding.element), encoding.powers_of_two);
    result.stored = std::bit_cast<std::uint32_t>(1.0F / result.multiplier);
  } else if (encoding.scale == Scale::e8m0) {
    const std::uint8_t code = E8M0::encode_up(amax * (1.0F / 448.0F));
    result = {.multiplier = E8M0::multiplier(code), .stored = code};
  } else {
    const float whole = nvfp4_multiplier(tensor_amax);
    const std::uint8_t code = E4M3::encode(fminf(amax * (whole * (1.0F / 6.0F)), FLT_MAX));
    result = {.multiplier = fminf(1.0F / (E4M3::decode(code) * (1.0F / whole)), FLT_MAX), .stored = code};
  }
  return result;
}

// Returns the stored bits of a NaN scale.
TESSERA_HOST_DEVICE inline std::uint32_t nan_scale(Scale scale) {
  return scale == Scale::fp32 ? 0x7FC00000U : scale == Scale::e8m0 ? 0xFFU : 0x7FU;
}

// Returns the scale of a tile of a GEMM operand. The scale equals tile_scale unless `amax` is infinite or NaN. Then the
// stored scale is NaN, so that the product is NaN too; the saturated elements alone would hide the infinity, and 4-bit
// elements have no NaN. Stored weights use tile_scale instead, because their cast reports values that are not finite
// (master_cast.h).
TESSERA_HOST_DEVICE inline TileScale operand_scale(const Encoding& encoding, float amax, float tensor_amax) {
  TileScale result = tile_scale(encoding, amax, tensor_amax);
  if (!(amax <= FLT_MAX)) result.stored = nan_scale(encoding.scale);
  return result;
}

// Returns the factor that decodes an element of a tile: its value is the element times this factor.
TESSERA_HOST_DEVICE inline float decode_scale(Scale scale, std::uint32_t stored, float tensor_amax) {
  if (scale == Scale::fp32) return std::bit_cast<float>(stored);
  if (scale == Scale::e8m0) return E8M0::decode(static_cast<std::uint8_t>(stored));
  const float tile = E4M3::decode(static_cast<std::uint8_t>(stored));
  // The product of `tile` and `tensor_amax` may overflow although the scale does not. Multiplying by a power of two
  // changes no other bit.
  if (tensor_amax > 0x1p118F) return ((tile * (tensor_amax * 0x1p-10F)) * (1.0F / 2688.0F)) * 0x1p10F;
  return (tile * tensor_amax) * (1.0F / 2688.0F);
}

// Returns true if one fp32 scale belongs to the whole matrix.
TESSERA_HOST_DEVICE constexpr bool has_one_scale(const Encoding& encoding) {
  return encoding.scale == Scale::fp32 && encoding.tile.rows == 0 && encoding.tile.cols == 0;
}

// Returns the factor of a tile's decoded values (decoded.h). The factor contains no number of the whole matrix: neither
// tensor_amax nor the scale of an encoding with one fp32 scale.
TESSERA_HOST_DEVICE inline float decoded_factor(const Encoding& encoding, std::uint32_t stored) {
  if (encoding.scale == Scale::e4m3) return E4M3::decode(static_cast<std::uint8_t>(stored));
  return has_one_scale(encoding) ? 1.0F : decode_scale(encoding.scale, stored, 0);
}

// Returns the decoded value of one element. `factor` is the decoded_factor of its tile. The product is exact in fp32. A
// NaN has the bits 0x7FFF, as the conversion instruction of GPUs gives.
TESSERA_HOST_DEVICE inline bfloat16 decoded_value(float element, float factor) {
  const float value = element * factor;
  bfloat16 result(value);
  if (value != value) result.bits = 0x7FFF;
  return result;
}

// Returns alpha, the factor of a product of two decoded operands. `left_whole` and `right_whole` are the operands'
// numbers of the whole matrix: tensor_amax for e4m3 scales, the inverse scale for an encoding with one fp32 scale;
// otherwise they are not read. The arithmetic is fp64, rounded once to fp32. The result may be infinite or NaN.
TESSERA_HOST_DEVICE inline float product_alpha(const Encoding& left, float left_whole, const Encoding& right,
                                               float right_whole) {
  const double left_number = left.scale == Scale::e4m3 || has_one_scale(left) ? left_whole : 1.0F;
  const double right_number = right.scale == Scale::e4m3 || has_one_scale(right) ? right_whole : 1.0F;
  const double divisor = (left.scale == Scale::e4m3 ? 2688.0 : 1.0) * (right.scale == Scale::e4m3 ? 2688.0 : 1.0);
  return static_cast<float>(left_number * right_number / divisor);
}

}  // namespace tessera::quant
