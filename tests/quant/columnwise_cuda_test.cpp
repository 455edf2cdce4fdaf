// Compares transposed copies of stacks of matrices on a GPU with the host.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>

#include "tests/quant/stacks.h"

namespace tessera::quant {
namespace {

// A stack on the device, and memory for its transposed copy. `padded` and `scale_cols` are those of Transposition.
class TurnedStack {
 public:
  TurnedStack(Stack stack, Extent padded, std::int64_t scale_cols, std::size_t shift)
      : stack_(std::move(stack)),
        stored_(stack_.stored()),
        expected_(stack_.transposed_room(padded, scale_cols)),
        source_(stored_, shift),
        target_(expected_, shift),
        work_{.source = stored_.view(),
              .matrix = stack_.matrix,
              .encoding = stack_.encoding,
              .target = expected_.view(),
              .padded = padded,
              .scale_cols = scale_cols,
              .matrices = stack_.count} {
    transpose(work_);
  }

  Transposition task() {
    Transposition task = work_;
    task.source = source_.view();
    task.target = target_.view();
    return task;
  }

  void expect_equal_to_host() {
    const std::string what =
        fmt::format("{} matrices of {} x {}", stack_.count, stack_.matrix.rows, stack_.matrix.cols);
    EXPECT_TRUE(same_bytes(target_.codes.values(), expected_.codes)) << "codes, " << what;
    EXPECT_TRUE(same_bytes(target_.scales.values(), expected_.scales)) << "scales, " << what;
    EXPECT_EQ(target_.tensor_amaxes.values(), expected_.tensor_amaxes) << what;
  }

 private:
  Stack stack_;
  StoredStack stored_, expected_;
  DeviceStack source_, target_;
  Transposition work_;
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

TEST_F(DeviceColumnwise, TransposesManyStacksLikeTheHostAndPadsWithZeros) {
  std::mt19937 random(21);
  for (const std::size_t shift : {0, 1})
    for (const bool is_padded : {false, true}) {
      if (is_padded && shift == 1) continue;
      std::vector<std::unique_ptr<TurnedStack>> turned;
      std::vector<Transposition> tasks;
      for (const NamedEncoding& named : all_encodings())
        for (const auto& [matrix, count] : stacks(named.encoding)) {
          Extent padded = flip(matrix);
          std::int64_t scale_cols = 0;
          if (is_padded)
            scale_cols = scale_extent(named.encoding, matrix).rows + static_cast<std::int64_t>(random() % 40);
          if (is_padded)
            padded = {.rows = (padded.rows + 15) / 16 * 16 + static_cast<std::int64_t>(random() % 2) * 144,
                      .cols = (padded.cols + 31) / 32 * 32 + static_cast<std::int64_t>(random() % 3) * 288};
          turned.push_back(std::make_unique<TurnedStack>(random_stack(named.encoding, matrix, count, random), padded,
                                                         scale_cols, shift));
          tasks.push_back(turned.back()->task());
        }
      kernels().create_columnwise(tasks, nullptr);
      for (const auto& stack : turned) stack->expect_equal_to_host();
    }
}

}  // namespace
}  // namespace tessera::quant
