// Rectangles of a logical tensor. A tensor with any number of dimensions is viewed as a matrix. The last dimension
// becomes the columns. All leading dimensions are flattened into the rows. A vector is one row.
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

// Returns the matrix view of a tensor with these dimensions. Throws Error for a negative dimension, and for more than
// 2^63 rows or elements.
Shape matrix_shape(std::span<const std::int64_t> dims);

// Rows [row, row + rows) and columns [col, col + cols) of the logical matrix. A box is empty if either extent is 0.
struct Box {
  std::int64_t row = 0, rows = 0, col = 0, cols = 0;
  std::int64_t elements() const { return rows * cols; }
  bool empty() const { return rows == 0 || cols == 0; }
  bool operator==(const Box&) const = default;
};

// Returns the intersection, or nullopt if it is empty.
std::optional<Box> intersect(const Box& a, const Box& b);

}  // namespace tessera::layout
