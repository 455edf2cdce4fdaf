// Compares unpacking on a GPU with the host.
#include <gtest/gtest.h>

#include <memory>

#include "tessera/quant/formats/decoded.h"
#include "tests/quant/on_device.h"
#include "tests/quant/values.h"

namespace tessera::quant {
namespace {

// A weight on the device, and its unpacked result.
struct PackedWeight {
  PackedWeight(const NamedEncoding& named, Extent extent, const std::vector<float>& values, std::size_t shift)
      : encoding(named.encoding),
        matrix(extent),
        stored(quantized(values, extent, named.encoding)),
        on_device(stored, shift),
        target(extent.elements(), 2 * shift) {}
  Dequantization task() {
    return {.source = on_device.view(),
            .matrix = matrix,
            .encoding = encoding,
            .target = target.data(),
            .decoded = decoded};
  }
  std::vector<bfloat16> expected() {
    std::vector<bfloat16> values(static_cast<std::size_t>(matrix.elements()));
    if (decoded)
      decode(stored.view(), matrix, encoding, values.data());
    else
      dequantize(stored.view(), matrix, encoding, values.data());
    return values;
  }
  bool is_as_expected() {
    if (decoded) return same_bits(target.values(), expected());
    return same_numbers(target.values(), expected());
  }

  Encoding encoding;
  Extent matrix;
  Stored stored;
  DeviceStored on_device;
  DeviceArray<bfloat16> target;
  bool decoded = false;
};

class DeviceDequantize : public OnDevice {
 protected:
  static void check(std::vector<std::unique_ptr<PackedWeight>>& weights) {
    std::vector<Dequantization> tasks;
    for (const auto& weight : weights) tasks.push_back(weight->task());
    kernels().dequantize(tasks, nullptr);
    for (std::size_t w = 0; w < weights.size(); ++w)
      EXPECT_TRUE(weights[w]->is_as_expected())
          << "weight " << w << ", " << weights[w]->matrix.rows << " x " << weights[w]->matrix.cols;
  }
};

TEST_F(DeviceDequantize, UnpacksManyWeightsLikeTheHost) {
  unsigned seed = 0;
  for (const std::size_t shift : {0, 1}) {
    std::vector<std::unique_ptr<PackedWeight>> weights;
    for (const Extent& matrix : device_matrices())
      for (const NamedEncoding& named : all_encodings())
        for (const bool decoded : {false, true}) {
          weights.push_back(
              std::make_unique<PackedWeight>(named, matrix, all_kinds_of_values(matrix.elements(), ++seed), shift));
          weights.back()->decoded = decoded;
        }
    weights.push_back(std::make_unique<PackedWeight>(all_encodings()[8], Extent{0, 32}, std::vector<float>(), shift));
    check(weights);
  }
}

// Combines every code, including NaNs and infinities, with every one-byte scale.
TEST_F(DeviceDequantize, UnpacksEveryCodeAndScale) {
  for (const NamedEncoding& named : all_encodings()) {
    const Extent matrix{.rows = 512, .cols = 512};
    std::vector<std::unique_ptr<PackedWeight>> weights;
    for (const bool decoded : {false, true}) {
      weights.push_back(std::make_unique<PackedWeight>(named, matrix, random_values(matrix.elements(), 5), 0));
      weights.back()->decoded = decoded;
      Stored& stored = weights.back()->stored;
      for (std::size_t i = 0; i < stored.data.size(); ++i) stored.data[i] = static_cast<std::uint8_t>(i * 31 + i / 256);
      if (named.encoding.scale != Scale::fp32)
        for (std::size_t i = 0; i < stored.scales.size(); ++i) stored.scales[i] = static_cast<std::uint8_t>(i);
      weights.back()->on_device.codes.set(stored.data);
      weights.back()->on_device.scales.set(stored.scales);
    }
    check(weights);
  }
}

TEST_F(DeviceDequantize, TheKernelsOfADeviceGiveTheSameValues) {
  const Extent matrix{.rows = 100, .cols = 688};
  PackedWeight weight(all_encodings()[7], matrix, random_values(matrix.elements(), 9), 0);
  make_cuda_kernels(kTestDevice, nullptr)
      ->dequantize(weight.on_device.view(), matrix, weight.encoding, weight.target.data());
  EXPECT_TRUE(same_numbers(weight.target.values(), weight.expected()));
}

}  // namespace
}  // namespace tessera::quant
