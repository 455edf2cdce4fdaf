// Rectangles of a logical tensor. A tensor of any rank is seen as a matrix: the last dimension is columns, all leading
// ones flatten into rows; a vector is one row.
#pragma once
#include <cstdint>
#include <optional>
#include <span>

namespace tessera::layout {

struct Shape {
  std::int64_t rows = 0, cols = 0;
  std::int64_t elements() const { return rows * cols; }
  bool operator==(const Shape&) const = default;
};

// The matrix view of a tensor with these dimensions. Errors: a negative dimension.
Shape matrix_shape(std::span<const std::int64_t> dims);

// Rows [row, row + rows) and columns [col, col + cols) of the logical matrix. Empty when either extent is 0.
struct Box {
  std::int64_t row = 0, rows = 0, col = 0, cols = 0;
  std::int64_t elements() const { return rows * cols; }
  bool empty() const { return rows == 0 || cols == 0; }
  bool operator==(const Box&) const = default;
};

// The common part, if it is not empty.
std::optional<Box> intersect(const Box& a, const Box& b);

}  // namespace tessera::layout
