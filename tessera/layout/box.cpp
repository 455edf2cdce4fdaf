#include "tessera/layout/box.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::layout {

Shape matrix_shape(std::span<const std::int64_t> dims) {
  Shape shape{.rows = 1, .cols = dims.empty() ? 1 : dims.back()};
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] < 0) throw Error("matrix_shape: dimension {} of {} is {}, expected 0 or more", i, dims.size(), dims[i]);
    if (i + 1 < dims.size() && __builtin_mul_overflow(shape.rows, dims[i], &shape.rows)) {
      throw Error("matrix_shape: the leading {} dimensions have more than 2^63 rows", i + 1);
    }
  }
  std::int64_t elements = 0;
  if (__builtin_mul_overflow(shape.rows, shape.cols, &elements)) {
    throw Error("matrix_shape: {} rows of {} columns are more than 2^63 elements", shape.rows, shape.cols);
  }
  return shape;
}

std::optional<Box> intersect(const Box& a, const Box& b) {
  const std::int64_t row = std::max(a.row, b.row), row_end = std::min(a.row + a.rows, b.row + b.rows);
  const std::int64_t col = std::max(a.col, b.col), col_end = std::min(a.col + a.cols, b.col + b.cols);
  if (row >= row_end || col >= col_end) return std::nullopt;
  return Box{.row = row, .rows = row_end - row, .col = col, .cols = col_end - col};
}

}  // namespace tessera::layout
