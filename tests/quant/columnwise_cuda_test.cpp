// Compares transposed copies of stacks of matrices on a GPU with the host.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>

#include "tests/quant/stacks.h"

namespace tessera::quant {
namespace {

// A stack on the device, and memory for its transposed copy. `padded`: extent of the codes of one transposed matrix.
class TurnedStack {
 public:
  TurnedStack(Stack stack, Extent padded, std::size_t shift)
      : stack_(std::move(stack)),
        padded_(padded),
        stored_(stack_.stored()),
        source_(stored_, shift),
        target_(stack_.transposed_room(padded), shift) {}

  Transposition task() {
    return {.source = source_.view(),
            .matrix = stack_.matrix,
            .encoding = stack_.encoding,
            .target = target_.view(),
            .padded = padded_,
            .matrices = stack_.count};
  }

  void expect_equal_to_host() {
    const StoredStack expected = expected_stack();
    const std::string what =
        fmt::format("{} matrices of {} x {}", stack_.count, stack_.matrix.rows, stack_.matrix.cols);
    EXPECT_TRUE(same_bytes(target_.codes.values(), expected.codes)) << "codes, " << what;
    EXPECT_TRUE(same_bytes(target_.scales.values(), expected.scales)) << "scales, " << what;
    EXPECT_EQ(target_.tensor_amaxes.values(), expected.tensor_amaxes) << what;
  }

 private:
  // Returns the host's result with padding.
  StoredStack expected_stack() {
    const Extent across = flip(stack_.matrix);
    StoredStack turned = stack_.transposed_room(across), result = turned;
    transpose(stored_.view(), stack_.matrix, stack_.encoding, turned.view(), stack_.count);
    const auto bytes_of = [&](std::int64_t elements) {
      return static_cast<std::size_t>(data_bytes(stack_.encoding.element, elements));
    };
    result.codes.assign(bytes_of(stack_.count * padded_.elements()), 0);
    for (std::int64_t number = 0; number < stack_.count; ++number)
      for (std::int64_t row = 0; row < across.rows; ++row)
        std::copy_n(turned.codes.data() + bytes_of((number * across.rows + row) * across.cols), bytes_of(across.cols),
                    result.codes.data() + bytes_of((number * padded_.rows + row) * padded_.cols));
    result.scales = turned.scales;
    result.tensor_amaxes = turned.tensor_amaxes;
    return result;
  }

  Stack stack_;
  Extent padded_;
  StoredStack stored_;
  DeviceStack source_, target_;
};

class DeviceColumnwise : public OnDevice {
 protected:
  // The extents in which 4-bit elements can be transposed, with numbers of matrices.
  static std::vector<std::pair<Extent, std::int64_t>> stacks(const Encoding& encoding) {
    std::vector<std::pair<Extent, std::int64_t>> result{{{0, 16}, 2},    {{272, 512}, 1}, {{384, 1024}, 1},
                                                        {{290, 272}, 3}, {{34, 18}, 130}, {{16, 16}, 0}};
    for (const Extent& matrix : device_matrices())
      if (encoding.element != Element::e2m1 || matrix.rows % 2 == 0)
        result.emplace_back(matrix, matrix.elements() < 10000 ? 4 : 1);
    return result;
  }
};

TEST_F(DeviceColumnwise, TransposesManyStacksLikeTheHostAndPadsCodesWithZeros) {
  std::mt19937 random(21);
  for (const std::size_t shift : {0, 1})
    for (const bool is_padded : {false, true}) {
      if (is_padded && shift == 1) continue;
      std::vector<std::unique_ptr<TurnedStack>> turned;
      std::vector<Transposition> tasks;
      for (const NamedEncoding& named : all_encodings())
        for (const auto& [matrix, count] : stacks(named.encoding)) {
          Extent padded = flip(matrix);
          if (is_padded)
            padded = {.rows = (padded.rows + 15) / 16 * 16 + static_cast<std::int64_t>(random() % 2) * 144,
                      .cols = (padded.cols + 31) / 32 * 32 + static_cast<std::int64_t>(random() % 3) * 288};
          turned.push_back(
              std::make_unique<TurnedStack>(random_stack(named.encoding, matrix, count, random), padded, shift));
          tasks.push_back(turned.back()->task());
        }
      kernels().create_columnwise(tasks, nullptr);
      for (const auto& stack : turned) stack->expect_equal_to_host();
    }
}

}  // namespace
}  // namespace tessera::quant
