// Compares transposed copies of weights on a GPU with the host.
#include <gtest/gtest.h>

#include <memory>

#include "tests/quant/on_device.h"

namespace tessera::quant {
namespace {

// A weight on the device, and memory for its transposed copy.
struct TurnedWeight {
  TurnedWeight(const Encoding& weight_encoding, Extent extent, Extent target_extent, unsigned seed, std::size_t shift)
      : encoding(weight_encoding),
        flipped(weight_encoding),
        matrix(extent),
        padded(target_extent),
        stored(quantized(random_values(extent.elements(), seed), extent, weight_encoding)),
        source(stored, shift) {
    flipped.tile = {encoding.tile.cols, encoding.tile.rows};
    const Extent room_extent = padded == Extent{} ? Extent{matrix.cols, matrix.rows} : padded;
    room = room_for(flipped, {matrix.cols, matrix.rows});
    room.data.assign(static_cast<std::size_t>(data_bytes(encoding.element, room_extent.elements())), 0xA5);
    target = std::make_unique<DeviceStored>(room, shift);
  }
  Transposition task() {
    return {
        .source = source.view(), .matrix = matrix, .encoding = encoding, .target = target->view(), .padded = padded};
  }
  Stored expected() {
    Stored result = room_for(flipped, {matrix.cols, matrix.rows});
    transpose(stored.view(), matrix, encoding, result.view());
    if (padded == Extent{}) return result;
    const auto row = static_cast<std::size_t>(data_bytes(encoding.element, matrix.rows));
    const auto padded_row = static_cast<std::size_t>(data_bytes(encoding.element, padded.cols));
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(padded.rows) * padded_row);
    for (std::size_t r = 0; r < static_cast<std::size_t>(matrix.cols); ++r)
      std::copy_n(result.data.data() + r * row, row, codes.data() + r * padded_row);
    result.data = codes;
    return result;
  }

  Encoding encoding, flipped;
  Extent matrix, padded;
  Stored stored;
  DeviceStored source;
  Stored room;
  std::unique_ptr<DeviceStored> target;
};

class DeviceColumnwise : public OnDevice {
 protected:
  static void check(std::vector<std::unique_ptr<TurnedWeight>>& weights) {
    std::vector<Transposition> tasks;
    for (const auto& weight : weights) tasks.push_back(weight->task());
    kernels().create_columnwise(tasks, nullptr);
    for (std::size_t w = 0; w < weights.size(); ++w) {
      const Stored got = weights[w]->target->values(), expected = weights[w]->expected();
      const Extent matrix = weights[w]->matrix;
      EXPECT_TRUE(same_bytes(got.data, expected.data)) << "codes, " << matrix.rows << " x " << matrix.cols;
      EXPECT_TRUE(same_bytes(got.scales, expected.scales)) << "scales, " << matrix.rows << " x " << matrix.cols;
      EXPECT_EQ(got.tensor_amax, expected.tensor_amax);
    }
  }
  // The extents in which 4-bit elements can be transposed.
  static std::vector<Extent> matrices(const Encoding& encoding) {
    std::vector<Extent> result{{0, 16}, {272, 512}, {384, 1024}};
    for (const Extent& matrix : device_matrices())
      if (encoding.element != Element::e2m1 || matrix.rows % 2 == 0) result.push_back(matrix);
    return result;
  }
};

TEST_F(DeviceColumnwise, TransposesManyWeightsLikeTheHost) {
  unsigned seed = 0;
  for (const std::size_t shift : {0, 1}) {
    std::vector<std::unique_ptr<TurnedWeight>> weights;
    for (const NamedEncoding& named : all_encodings())
      for (const Extent& matrix : matrices(named.encoding))
        weights.push_back(std::make_unique<TurnedWeight>(named.encoding, matrix, Extent{}, ++seed, shift));
    check(weights);
  }
}

TEST_F(DeviceColumnwise, PadsTheCodesWithZeros) {
  unsigned seed = 500;
  std::vector<std::unique_ptr<TurnedWeight>> weights;
  for (const NamedEncoding& named : all_encodings())
    for (const Extent& matrix : matrices(named.encoding)) {
      const Extent padded{.rows = (matrix.cols + 15) / 16 * 16 + seed % 2 * 144,
                          .cols = (matrix.rows + 31) / 32 * 32 + seed % 3 * 288};
      weights.push_back(std::make_unique<TurnedWeight>(named.encoding, matrix, padded, ++seed, 0));
    }
  check(weights);
}

}  // namespace
}  // namespace tessera::quant
