// Stacks of matrices for tests that run on the host and on a GPU.
#pragma once
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/quant/on_device.h"

namespace tessera::quant {

// The bytes of a stack.
struct StoredStack {
  void add(const Stored& matrix) {
    codes.insert(codes.end(), matrix.data.begin(), matrix.data.end());
    scales.insert(scales.end(), matrix.scales.begin(), matrix.scales.end());
    tensor_amaxes.push_back(matrix.tensor_amax);
  }
  Quantized view() { return {.data = codes.data(), .scales = scales.data(), .tensor_amax = tensor_amaxes.data()}; }
  bool operator==(const StoredStack&) const = default;

  std::vector<std::uint8_t> codes, scales;
  std::vector<float> tensor_amaxes;
};

struct Stack {
  Encoding encoding;
  Extent matrix;
  std::int64_t count = 0;      // number of matrices
  std::vector<float> masters;  // of all matrices, one after the other

  std::vector<float> master(std::int64_t number) const {
    const auto begin = masters.begin() + number * matrix.elements();
    return {begin, begin + matrix.elements()};
  }
  // Returns the bytes of one matrix that is quantized alone.
  Stored quantized_alone(std::int64_t number) const { return quantized(master(number), matrix, encoding); }
  // Returns the bytes of all matrices.
  StoredStack stored() const {
    StoredStack result;
    for (std::int64_t number = 0; number < count; ++number) result.add(quantized_alone(number));
    return result;
  }
  // Returns memory for the transposed matrices. `padded`: extent of the codes of one of them. scale_cols: number of
  // scales in a row of its scales; 0: no padding.
  StoredStack transposed_room(Extent padded, std::int64_t scale_cols = 0) const {
    Stored one = room_for(flipped(encoding), flip(matrix));
    one.data.assign(static_cast<std::size_t>(data_bytes(encoding.element, padded.elements())), 0xA5);
    const Extent tiles = scale_extent(encoding, matrix);
    if (scale_cols > 0)
      one.scales.assign(static_cast<std::size_t>(tiles.cols * scale_cols) * size_of(scale_type(encoding.scale)), 0xA5);
    StoredStack room;
    for (std::int64_t number = 0; number < count; ++number) room.add(one);
    return room;
  }
};

// A StoredStack on a device. `shift` is the DeviceArray shift of the codes.
struct DeviceStack {
  explicit DeviceStack(const StoredStack& stack, std::size_t shift = 0, base::Device device = kTestDevice)
      : codes(stack.codes, shift, device),
        scales(stack.scales, 0, device),
        tensor_amaxes(stack.tensor_amaxes, 0, device) {}
  Quantized view() { return {.data = codes.data(), .scales = scales.data(), .tensor_amax = tensor_amaxes.data()}; }

  DeviceArray<std::uint8_t> codes, scales;
  DeviceArray<float> tensor_amaxes;
};

// Returns a stack with a matrix of zeros. The amaxes of the matrices differ by factors of up to 10^6.
inline Stack random_stack(const Encoding& encoding, Extent matrix, std::int64_t count, std::mt19937& random) {
  Stack stack{.encoding = encoding,
              .matrix = matrix,
              .count = count,
              .masters = random_values(count * matrix.elements(), static_cast<unsigned>(random()))};
  for (std::int64_t number = 0; number < count; ++number) {
    const float factor = number % 5 == 3 ? 0 : std::pow(10.0F, static_cast<float>(random() % 7));
    for (std::int64_t i = 0; i < matrix.elements(); ++i)
      stack.masters[static_cast<std::size_t>(number * matrix.elements() + i)] *= factor;
  }
  return stack;
}

// Returns an extent of at most 40 x 300 whose elements are often not a multiple of 8. The number of columns is even.
inline Extent random_extent(std::mt19937& random) {
  const std::int64_t rows = 1 + static_cast<std::int64_t>(random() % 40);
  const std::int64_t cols = random() % 3 == 0 ? 16 * (1 + random() % 8) : 2 * (1 + random() % 150);
  return {.rows = rows, .cols = cols};
}

}  // namespace tessera::quant
