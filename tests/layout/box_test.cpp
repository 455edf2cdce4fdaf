#include "tessera/layout/box.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "tessera/base/error.h"

namespace tessera::layout {
namespace {

TEST(Box, MatrixShapeFlattensLeadingDimensionsIntoRows) {
  const auto shape = [](std::vector<std::int64_t> dims) { return matrix_shape(dims); };
  EXPECT_EQ(shape({5, 7}), (Shape{5, 7}));
  EXPECT_EQ(shape({3, 5, 7}), (Shape{15, 7}));
  EXPECT_EQ(shape({2, 3, 5, 7}), (Shape{30, 7}));
  EXPECT_EQ(shape({7}), (Shape{1, 7}));
  EXPECT_EQ(shape({}), (Shape{1, 1}));
  EXPECT_EQ(shape({0, 7}), (Shape{0, 7}));
  EXPECT_EQ(shape({3, 0}), (Shape{3, 0}));
}

TEST(Box, MatrixShapeRefusesNegativeAndHugeDimensions) {
  const std::vector<std::int64_t> negative{4, -1, 3};
  EXPECT_THROW(matrix_shape(negative), Error);
  const std::int64_t huge = std::numeric_limits<std::int64_t>::max() / 2;
  EXPECT_THROW(matrix_shape(std::vector<std::int64_t>{huge, 3, 1}), Error);
  EXPECT_THROW(matrix_shape(std::vector<std::int64_t>{huge, 3}), Error);
}

TEST(Box, IntersectionHoldsExactlyTheCommonElements) {
  // Compares every pair of boxes in a 4 x 3 matrix element by element.
  std::vector<Box> boxes;
  for (std::int64_t row = 0; row < 4; ++row) {
    for (std::int64_t rows = 0; rows <= 4 - row; ++rows) {
      for (std::int64_t col = 0; col < 3; ++col) {
        for (std::int64_t cols = 0; cols <= 3 - col; ++cols) boxes.push_back({row, rows, col, cols});
      }
    }
  }
  const auto holds = [](const Box& box, std::int64_t r, std::int64_t c) {
    return r >= box.row && r < box.row + box.rows && c >= box.col && c < box.col + box.cols;
  };
  for (const Box& a : boxes) {
    for (const Box& b : boxes) {
      const auto common = intersect(a, b);
      std::int64_t elements = 0;
      for (std::int64_t r = 0; r < 4; ++r) {
        for (std::int64_t c = 0; c < 3; ++c) {
          const bool both = holds(a, r, c) && holds(b, r, c);
          elements += both;
          ASSERT_EQ(both, common && holds(*common, r, c));
        }
      }
      ASSERT_EQ(common ? common->elements() : 0, elements);
      ASSERT_TRUE(!common || !common->empty());
    }
  }
}

}  // namespace
}  // namespace tessera::layout
