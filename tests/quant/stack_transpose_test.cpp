// Transposes stacks of matrices. Each matrix must have the bytes of a matrix that is transposed alone.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "tests/quant/stacks.h"

namespace tessera::quant {
namespace {

Encoding flipped(Encoding encoding) {
  std::swap(encoding.tile.rows, encoding.tile.cols);
  return encoding;
}

// The numbers of rows and columns are even, as 4-bit elements require. The first stack has several thread blocks for
// each matrix.
std::vector<Stack> stacks_of(const Encoding& encoding) {
  std::mt19937 random(79);
  std::vector<Stack> stacks;
  for (const auto& [matrix, count] : std::vector<std::pair<Extent, std::int64_t>>{{{290, 272}, 3},
                                                                                  {{2, 288}, 7},
                                                                                  {{34, 18}, 130},
                                                                                  {{256, 128}, 2},
                                                                                  {{0, 32}, 4},
                                                                                  {{16, 16}, 0},
                                                                                  {{66, 130}, 1}})
    stacks.push_back(random_stack(encoding, matrix, count, random));
  return stacks;
}

TEST(StackTranspose, EachMatrixHasTheBytesOfAMatrixAlone) {
  for (const NamedEncoding& named : all_encodings())
    for (const Stack& stack : stacks_of(named.encoding)) {
      SCOPED_TRACE(
          fmt::format("{}: {} matrices of {} x {}", named.name, stack.count, stack.matrix.rows, stack.matrix.cols));
      StoredStack source(stack), expected, found;
      for (std::int64_t number = 0; number < stack.count; ++number) {
        Stored alone = stack.quantized_alone(number), turned = room_for(flipped(stack.encoding), flip(stack.matrix));
        found.add(turned);
        transpose(alone.view(), stack.matrix, stack.encoding, turned.view());
        expected.add(turned);
      }
      transpose(source.view(), stack.matrix, stack.encoding, found.view(), stack.count);
      EXPECT_EQ(found, expected);
    }
}

// A stack on the device, and two transposed copies.
struct TurnedStack {
  TurnedStack(const Stack& stack, bool is_padded, std::size_t shift) : stack(stack), source(StoredStack(stack), shift) {
    const Extent across = flip(stack.matrix);
    padded = is_padded ? Extent{across.rows + 16, (across.cols + 31) / 16 * 16} : across;
    StoredStack room;
    for (std::int64_t number = 0; number < stack.count; ++number) {
      Stored matrix = room_for(flipped(stack.encoding), across);
      matrix.data.assign(static_cast<std::size_t>(data_bytes(stack.encoding.element, padded.elements())), 0xA5);
      room.add(matrix);
    }
    together = std::make_unique<DeviceStack>(room, shift);
    alone = std::make_unique<DeviceStack>(room, shift);
  }
  Transposition task() {
    return {.source = source.view(),
            .matrix = stack.matrix,
            .encoding = stack.encoding,
            .target = together->view(),
            .padded = padded,
            .matrices = stack.count};
  }
  Transposition task_of(std::int64_t number) {
    const Encoding& encoding = stack.encoding;
    Quantized target = matrix_of(alone->view(), number, stack.matrix, encoding);
    target.data = alone->codes.data() + data_bytes(encoding.element, number * padded.elements());
    return {.source = matrix_of(source.view(), number, stack.matrix, encoding),
            .matrix = stack.matrix,
            .encoding = encoding,
            .target = target,
            .padded = padded};
  }

  Stack stack;
  DeviceStack source;
  Extent padded;
  std::unique_ptr<DeviceStack> together, alone;
};

class DeviceStackTranspose : public OnDevice {};

// tests/quant/columnwise_cuda_test.cpp compares single matrices with the host.
TEST_F(DeviceStackTranspose, EachMatrixHasTheBytesOfAMatrixAlone) {
  for (const bool is_padded : {false, true})
    for (const std::size_t shift : {0, 1}) {
      std::vector<std::unique_ptr<TurnedStack>> stacks;
      std::vector<Transposition> together, alone;
      for (const NamedEncoding& named : all_encodings())
        for (const Stack& stack : stacks_of(named.encoding)) {
          stacks.push_back(std::make_unique<TurnedStack>(stack, is_padded, shift));
          together.push_back(stacks.back()->task());
          for (std::int64_t number = 0; number < stack.count; ++number) alone.push_back(stacks.back()->task_of(number));
        }
      kernels().create_columnwise(together, nullptr);
      kernels().create_columnwise(alone, nullptr);
      for (const auto& turned : stacks) {
        EXPECT_TRUE(same_bytes(turned->together->codes.values(), turned->alone->codes.values()));
        EXPECT_TRUE(same_bytes(turned->together->scales.values(), turned->alone->scales.values()));
        EXPECT_EQ(turned->together->tensor_amaxes.values(), turned->alone->tensor_amaxes.values());
      }
    }
}

}  // namespace
}  // namespace tessera::quant
