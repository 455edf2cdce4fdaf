// A rank's part as one dense matrix, as a GEMM reads it: rows lie one below the other, and a row may consist of several
// ranges of columns side by side ([own | adopted]).
#pragma once
#include <vector>

#include "tessera/layout/layout.h"

namespace tessera::layout {

// Boxes of the same rows, side by side in the local matrix.
struct Band {
  std::vector<Box> boxes = {};  // not empty
  std::int64_t rows() const { return boxes.front().rows; }
  std::int64_t cols() const;
};

// A part as bands, one below the other. A piece stands beside the one before it where both have the same rows and it
// begins before that band's second row (its stride says where). Padding counts for nothing.
std::vector<Band> bands_of(const LocalLayout& local);
// Bands stacked densely: every piece has its band's width as its stride. Empty boxes are left out.
LocalLayout stack_densely(const std::vector<Band>& bands);
// Rows and columns of a part's local matrix. Errors: bands of different widths; `what` begins the message.
Shape dense_shape(const LocalLayout& local, const std::string& what);
// Whether the buffer is exactly such a matrix, row by row and without padding.
bool is_dense(const LocalLayout& local);
// The part with each band of several boxes as one box, whose columns count from 0 and whose rows keep their numbers.
// Ranks that hold rows of one local matrix exchange them so without regard to which columns these are: runs of the
// buffer.
LocalLayout with_local_columns(const LocalLayout& local);

// Given rank by rank: rank r holds all rows of these column ranges, in this order side by side. Ranks may overlap.
// Errors: a range outside the shape, a rank that asks for a column twice.
Layout cols_by_rank(Shape shape, const std::vector<std::vector<Range>>& ranges);

}  // namespace tessera::layout
