// Unpacks and decodes stacks of matrices. Each matrix must have the values of a matrix that is unpacked alone.
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <span>
#include <vector>

#include "tessera/quant/formats/decoded.h"
#include "tests/quant/stacks.h"

namespace tessera::quant {
namespace {

// A stack, and the values or decoded values of its matrices.
struct QuantizedStack {
  QuantizedStack(const Stack& stack, bool decoded)
      : encoding(stack.encoding),
        matrix(stack.matrix),
        count(stack.count),
        decoded(decoded),
        stored(stack.stored()),
        values(stack.masters.size()) {
    for (std::int64_t number = 0; number < count; ++number) {
      const Quantized alone = matrix_of(stored.view(), number, matrix, encoding);
      bfloat16* const target = values.data() + number * matrix.elements();
      if (decoded)
        decode(alone, matrix, encoding, target);
      else
        dequantize(alone, matrix, encoding, target);
    }
  }

  Encoding encoding;
  Extent matrix;
  std::int64_t count;
  bool decoded;
  StoredStack stored;
  std::vector<bfloat16> values;
};

// The stack on a device, and its unpacked values.
struct PackedStack {
  PackedStack(const QuantizedStack& stack, std::size_t shift, base::Device device)
      : source(stack.stored, shift, device),
        target(static_cast<std::int64_t>(stack.values.size()), 2 * shift, device),
        task{.source = source.view(),
             .matrix = stack.matrix,
             .encoding = stack.encoding,
             .target = target.data(),
             .matrices = stack.count,
             .decoded = stack.decoded} {}

  DeviceStack source;
  DeviceArray<bfloat16> target;
  Dequantization task;
};

class StackDequantize : public OnBothDevices {
 protected:
  void unpack_each(std::span<const Dequantization> tasks) const {
    for (const Dequantization& task : tasks)
      if (task.decoded)
        kernels().decode(task.source, task.matrix, task.encoding, task.target, task.matrices);
      else
        kernels().dequantize(task.source, task.matrix, task.encoding, task.target, task.matrices);
  }
  static std::vector<QuantizedStack> stacks() {
    std::mt19937 random(78);
    std::vector<QuantizedStack> result;
    for (const NamedEncoding& named : all_encodings()) {
      const auto add = [&](Extent matrix, std::int64_t count) {
        result.emplace_back(random_stack(named.encoding, matrix, count, random), random() % 2 == 0);
      };
      for (const std::int64_t count : {0, 1, 2, 7}) add(random_extent(random), count);
      add({3, 6}, 128);    // more matrices than a launch has weights
      add({129, 272}, 2);  // several thread blocks for each matrix
      add({17, 266}, 2);
      add({0, 32}, 4);
      if (named.encoding.element != Element::e2m1) add({5, 7}, 9);
    }
    return result;
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, StackDequantize, testing::Values(base::Device{}, kTestDevice), name_of_device);

TEST_P(StackDequantize, EachMatrixHasTheValuesOfAMatrixAlone) {
  const std::vector<QuantizedStack> stacks = StackDequantize::stacks();
  for (const std::size_t shift : {0, 1})
    for (const bool together : {false, true}) {
      if (together && GetParam() == base::Device{}) continue;  // only CUDA unpacks several weights together
      std::vector<std::unique_ptr<PackedStack>> packed;
      std::vector<Dequantization> tasks;
      for (const QuantizedStack& stack : stacks) {
        packed.push_back(std::make_unique<PackedStack>(stack, shift, GetParam()));
        tasks.push_back(packed.back()->task);
      }
      if (together)
        require_cuda("tests").dequantize(tasks, nullptr);
      else
        unpack_each(tasks);
      for (std::size_t s = 0; s < stacks.size(); ++s)
        EXPECT_TRUE(same_numbers(packed[s]->target.values(), stacks[s].values))
            << stacks[s].count << " matrices of " << stacks[s].matrix.rows << " x " << stacks[s].matrix.cols;
    }
}

}  // namespace
}  // namespace tessera::quant
