// GPU memory for tests of kernels, and matrices with all kinds of values.
#pragma once
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tessera/base/memory/buffer.h"
#include "tessera/quant/cuda_table.h"
#include "tests/quant/matrices.h"

namespace tessera::quant {

inline constexpr base::Device kTestDevice = base::cuda_device(0);

// The base of tests that enqueue on the default stream. Copies of DeviceArray wait for the stream.
class OnDevice : public testing::Test {
 protected:
  void SetUp() override {
    if (base::cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
    base::set_device(kTestDevice);
  }
  static const CudaTable& kernels() { return require_cuda("tests"); }
};

// The base of tests whose parameter is the device: the CPU or kTestDevice.
class OnBothDevices : public testing::TestWithParam<base::Device> {
 protected:
  void SetUp() override {
    if (GetParam() == base::Device{}) return;
    if (base::cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
    base::set_device(GetParam());
    of_device_ = make_cuda_kernels(GetParam(), nullptr);
  }
  const Kernels& kernels() const { return of_device_ ? *of_device_ : host_kernels(); }

 private:
  std::unique_ptr<Kernels> of_device_;
};
inline std::string name_of_device(const testing::TestParamInfo<base::Device>& info) {
  return info.param == base::Device{} ? "cpu" : "cuda";
}

// Elements on a device, or on the host, with guard bytes before and after them. All bytes are kFill initially. The
// address of the first element is `shift` bytes above a multiple of 256.
template <typename T>
class DeviceArray {
 public:
  static constexpr std::uint8_t kFill = 0xA5;

  explicit DeviceArray(std::int64_t count, std::size_t shift = 0, base::Device device = kTestDevice)
      : first_(kGuard + shift),
        count_(static_cast<std::size_t>(count)),
        memory_(first_ + count_ * sizeof(T) + kGuard, device) {
    const std::vector<std::uint8_t> fill(memory_.size(), kFill);
    base::copy_bytes(memory_.data(), fill.data(), fill.size());
  }
  explicit DeviceArray(const std::vector<T>& values, std::size_t shift = 0, base::Device device = kTestDevice)
      : DeviceArray(static_cast<std::int64_t>(values.size()), shift, device) {
    set(values);
  }

  T* data() { return reinterpret_cast<T*>(memory_.data() + first_); }
  void set(const std::vector<T>& values) { base::copy_bytes(data(), values.data(), count_ * sizeof(T)); }
  // Returns the elements. Also checks the guard bytes.
  std::vector<T> values() const {
    std::vector<std::uint8_t> bytes(memory_.size());
    base::copy_bytes(bytes.data(), memory_.data(), bytes.size());
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const bool is_guard = i < first_ || i >= first_ + count_ * sizeof(T);
      EXPECT_TRUE(!is_guard || bytes[i] == kFill) << "byte " << i << " of " << bytes.size() << " was written";
    }
    std::vector<T> values(count_);
    std::memcpy(values.data(), bytes.data() + first_, count_ * sizeof(T));
    return values;
  }

 private:
  static constexpr std::size_t kGuard = 256;

  std::size_t first_, count_;
  base::Buffer memory_;
};

// Returns random values, including zeros, subnormal numbers, infinities and NaNs. Some ranges do not contain
// infinities, because the scale of a tile with an infinity does not depend on the other values.
inline std::vector<float> all_kinds_of_values(std::int64_t count, unsigned seed) {
  std::vector<float> values = random_values(count, seed);
  std::mt19937 random(seed + 1);
  const std::uint32_t special[] = {0,          0x80000000, 1,          0x807FFFFF, 0x00400000, 0x7F800000,
                                   0xFF800000, 0x7FC00000, 0xFFC12345, 0x7F7FFFFF, 0x43E00000, 0x3F808000};
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto bits = static_cast<std::uint32_t>(random());
    if (bits % 97 != 0) continue;
    const std::uint32_t word = special[bits / 97 % 12];
    if ((word & 0x7F800000) != 0x7F800000 || i / 4096 % 3 == 2) values[i] = std::bit_cast<float>(word);
  }
  return values;
}

// Compares bits, except that any two NaNs are equal.
inline testing::AssertionResult same_numbers(const std::vector<bfloat16>& got, const std::vector<bfloat16>& expected) {
  if (got.size() != expected.size()) return testing::AssertionFailure() << got.size() << " elements";
  for (std::size_t i = 0; i < got.size(); ++i) {
    const bool are_nan = std::isnan(static_cast<float>(got[i])) && std::isnan(static_cast<float>(expected[i]));
    if (got[i].bits != expected[i].bits && !are_nan)
      return testing::AssertionFailure() << "element " << i << " of " << got.size() << ": " << got[i].bits
                                         << ", expected " << expected[i].bits;
  }
  return testing::AssertionSuccess();
}

template <typename T>
testing::AssertionResult same_bytes(const std::vector<T>& got, const std::vector<T>& expected) {
  if (got.size() != expected.size())
    return testing::AssertionFailure() << got.size() << " elements, expected " << expected.size();
  for (std::size_t i = 0; i < got.size(); ++i)
    if (std::memcmp(&got[i], &expected[i], sizeof(T)) != 0)
      return testing::AssertionFailure() << "element " << i << " of " << got.size() << ": " << +got[i] << ", expected "
                                         << +expected[i];
  return testing::AssertionSuccess();
}

// A quantized matrix on the device. `shift` is the DeviceArray shift of the codes.
struct DeviceStored {
  explicit DeviceStored(Stored& stored, std::size_t shift = 0)
      : codes(stored.data, shift), scales(stored.scales), tensor_amax(std::vector<float>{stored.tensor_amax}) {}
  Quantized view() { return {.data = codes.data(), .scales = scales.data(), .tensor_amax = tensor_amax.data()}; }
  Stored values() const {
    return {.data = codes.values(), .scales = scales.values(), .tensor_amax = tensor_amax.values()[0]};
  }

  DeviceArray<std::uint8_t> codes, scales;
  DeviceArray<float> tensor_amax;
};

inline const std::vector<Extent>& device_matrices() {
  static const std::vector<Extent> matrices = {{1, 16},    {5, 80},  {17, 288},  {100, 688},  {129, 80},
                                               {300, 288}, {16, 16}, {256, 512}, {129, 4096}, {3, 14},
                                               {130, 130}, {64, 6},  {33, 272},  {128, 128}};
  return matrices;
}

}  // namespace tessera::quant
