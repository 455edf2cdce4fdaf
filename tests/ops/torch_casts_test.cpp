// For finite values within the range of the type, quant and torch's casts give the same fp8 codes. For greater
// values torch gives NaN or infinity, and quant gives the greatest number.
#include <gtest/gtest.h>
#include <torch/headeronly/util/Float8_e4m3fn.h>
#include <torch/headeronly/util/Float8_e5m2.h>

#include <bit>
#include <cmath>

#include "tessera/quant/formats/encoding.h"

namespace tessera::ops {
namespace {

TEST(TorchCasts, OfFp8GiveTheSameCodes) {
  for (std::uint64_t bits = 0; bits < std::uint64_t{1} << 32; bits += 257) {
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (std::fabs(value) <= 448) {
      ASSERT_EQ(quant::E4M3::encode(value), c10::detail::fp8e4m3fn_from_fp32_value(value)) << std::hexfloat << value;
    }
    if (std::fabs(value) <= 57344) {
      ASSERT_EQ(quant::E5M2::encode(value), c10::detail::fp8e5m2_from_fp32_value(value)) << std::hexfloat << value;
    }
  }
}

}  // namespace
}  // namespace tessera::ops
