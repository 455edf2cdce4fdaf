// A rank's part as one dense matrix, as a GEMM reads it. Rows are stored from top to bottom. A row may consist of
// several column ranges side by side ([own | adopted]).
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/layout/layout.h"

namespace tessera::layout {

// Boxes with the same rows, side by side in the local matrix.
struct Band {
  std::vector<Box> boxes = {};  // not empty
  std::int64_t rows() const { return boxes.front().rows; }
  std::int64_t cols() const;
};

// Returns the bands of a part from top to bottom. A piece belongs to the band of the previous piece if two conditions
// hold. Both pieces have the same rows. In the buffer, the piece begins less than one stride after the start of the
// band. Padding is ignored.
std::vector<Band> bands_of(const LocalLayout& local);
// Returns the given rows of the matrix that the bands form.
std::vector<Band> rows_of(const std::vector<Band>& bands, Range rows);
// Stacks bands without gaps: the stride of every piece is the width of its band. Empty boxes are left out.
LocalLayout stack_densely(const std::vector<Band>& bands);
// Returns the rows and columns of a part's local matrix. Throws Error for bands of different widths; the message begins
// with `what`.
Shape dense_shape(const LocalLayout& local, const std::string& what);
// Returns the row of the part's local matrix that contains the first row of the box. The box's first column must be in
// the same row. Returns nullopt if the part does not contain this element.
std::optional<std::int64_t> local_row(const LocalLayout& local, const Box& box);
// Returns whether the buffer is exactly the part's local matrix, row by row and without padding.
bool is_dense(const LocalLayout& local);
// Returns the part with one box in place of the boxes of each band. Columns of the result are columns of the local
// matrix, from 0; rows keep their numbers. Several ranks may store rows of the same local matrix. With this layout,
// these ranks can exchange rows as contiguous runs of the buffer, for any logical columns.
LocalLayout with_local_columns(const LocalLayout& local);

// Rank r holds all rows of the columns `ranges[r]`, side by side in this order. Ranks may overlap. Throws Error for a
// range outside the shape, and if the ranges of one rank overlap.
Layout cols_by_rank(Shape shape, const std::vector<std::vector<Range>>& ranges);

}  // namespace tessera::layout
