// Compares padding and swizzling of scales on a GPU with the host.
#include "tessera/quant/formats/swizzle.h"

#include <gtest/gtest.h>

#include "tests/quant/on_device.h"

namespace tessera::quant {
namespace {

class DeviceSwizzle : public OnDevice {};

TEST_F(DeviceSwizzle, PadsAndSwizzlesLikeTheHost) {
  std::mt19937 random(3);
  for (const NamedEncoding& named : all_encodings()) {
    if (named.encoding.scale == Scale::fp32) continue;
    for (const Extent& matrix : device_matrices()) {
      const Extent extent = padded_scale_extent(named.encoding, matrix);
      std::vector<std::uint8_t> scales(static_cast<std::size_t>(scale_extent(named.encoding, matrix).elements()));
      for (std::uint8_t& scale : scales) scale = static_cast<std::uint8_t>(random());
      std::vector<std::uint8_t> padded(static_cast<std::size_t>(extent.elements())), swizzled(padded.size());
      pad_scales(scales.data(), matrix, named.encoding, padded.data());
      swizzle_scales(padded.data(), matrix, named.encoding, swizzled.data());
      DeviceArray<std::uint8_t> source(scales, 1), middle(extent.elements()), unaligned(extent.elements(), 1);
      DeviceArray<std::uint8_t> target(extent.elements());
      kernels().pad_scales(source.data(), matrix, named.encoding, middle.data(), nullptr);
      kernels().pad_scales(source.data(), matrix, named.encoding, unaligned.data(), nullptr);
      kernels().swizzle_scales(middle.data(), matrix, named.encoding, target.data(), nullptr);
      EXPECT_TRUE(same_bytes(middle.values(), padded)) << named.name << " " << matrix.rows << " x " << matrix.cols;
      EXPECT_TRUE(same_bytes(unaligned.values(), padded)) << named.name << " " << matrix.rows << " x " << matrix.cols;
      EXPECT_TRUE(same_bytes(target.values(), swizzled)) << named.name << " " << matrix.rows << " x " << matrix.cols;
    }
  }
}

}  // namespace
}  // namespace tessera::quant
