// The scales of an operand's tiles on a GPU: operand_scale and decoded_factor of encoding.h with fewer operations.
#pragma once
#include <cfloat>
#include <cmath>
#include <cstdint>

#include "tessera/quant/cuda/vector_codes.h"

namespace tessera::quant {

struct OperandScale {
  float multiplier = 1;  // values are multiplied by this number before they are rounded
  float factor = 1;      // decoded values are elements times this factor
  std::uint32_t stored = 0;
};

// The scales of a matrix in nvfp4. Each of the kNvfp4Scales stored scales has one multiplier and one factor.
inline constexpr int kNvfp4Scales = 128;
class Nvfp4Scales {
 public:
  TESSERA_HOST_DEVICE explicit Nvfp4Scales(float tensor_amax) {
    const float whole = nvfp4_multiplier(tensor_amax);
    whole_sixth_ = whole * (1.0F / 6.0F);
    whole_inverse_ = 1.0F / whole;
  }

  // Returns the stored scale. `amax` is NaN if the tile has a NaN.
  TESSERA_HOST_DEVICE std::uint32_t stored_of(float amax) const {
    const std::uint32_t stored = detail::encode_pair<Element::e4m3>(fminf(amax * whole_sixth_, FLT_MAX), 0.0F);
    return amax <= FLT_MAX ? stored : kNan;
  }
  // The multiplier of a tile that is not finite is that of the greatest scale.
  TESSERA_HOST_DEVICE OperandScale of(std::uint32_t stored) const {
    const float tile = E4M3::decode(static_cast<std::uint8_t>(stored == kNan ? kNan - 1 : stored));
    return {.multiplier = fminf(1.0F / (tile * whole_inverse_), FLT_MAX),
            .factor = E4M3::decode(static_cast<std::uint8_t>(stored)),
            .stored = stored};
  }

 private:
  static constexpr std::uint32_t kNan = kNvfp4Scales - 1;

  float whole_sixth_ = 1, whole_inverse_ = 1;
};

// Returns the scale of a tile in mxfp8. `amax` is NaN if the tile has a NaN.
TESSERA_HOST_DEVICE inline OperandScale mxfp8_scale(float amax) {
  const std::uint8_t code = E8M0::encode_up(amax * (1.0F / 448.0F));
  const std::uint32_t stored = amax <= FLT_MAX ? code : nan_scale(Scale::e8m0);
  return {.multiplier = E8M0::multiplier(code),
          .factor = E8M0::decode(static_cast<std::uint8_t>(stored)),
          .stored = stored};
}

}  // namespace tessera::quant
