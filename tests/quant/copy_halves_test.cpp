#include "tessera/quant/masters/copy_halves.h"

#include "tests/quant/on_device.h"

namespace tessera::quant {
namespace {

class CopyHalves : public OnBothDevices {};
INSTANTIATE_TEST_SUITE_P(Devices, CopyHalves, testing::Values(base::Device{}, kTestDevice), name_of_device);

// The targets are every third byte, from the last byte to the first.
TEST_P(CopyHalves, KeepTheOtherHalfAndTheOtherBytes) {
  for (const Half half : {Half::even, Half::odd})
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, kTargetsOfLaunch, 2 * kTargetsOfLaunch + 7}) {
      std::vector<std::uint8_t> from(count), expected(3 * count);
      for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::uint8_t>(37 * i + 11);
      for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = static_cast<std::uint8_t>(91 * i + 5);
      DeviceArray<std::uint8_t> source(from, 1, GetParam()), target(expected, 1, GetParam());
      std::vector<std::uint8_t*> targets;
      for (std::size_t i = 0; i < count; ++i) {
        const std::size_t at = 3 * (count - 1 - i);
        targets.push_back(target.data() + at);
        expected[at] = static_cast<std::uint8_t>(half == Half::even ? expected[at] / 16 * 16 + from[i] % 16
                                                                    : from[i] / 16 * 16 + expected[at] % 16);
      }
      copy_halves(half, source.data(), targets, GetParam(), nullptr);
      EXPECT_TRUE(same_bytes(target.values(), expected)) << count << " targets";
    }
}

}  // namespace
}  // namespace tessera::quant
