// Iterates over the elements of a rank's part of a tensor.
#pragma once
#include <cstdint>

#include "tessera/layout/layout.h"

namespace tessera::runtime {

// Calls visit(position in the part, logical index in row-major order) for every element.
template <typename Visit>
void for_each_element(const layout::LocalLayout& local, std::int64_t logical_cols, Visit visit) {
  for (const layout::Piece& piece : local.pieces)
    for (std::int64_t r = 0; r < piece.box.rows; ++r)
      for (std::int64_t c = 0; c < piece.box.cols; ++c)
        visit(piece.offset + r * piece.stride + c, (piece.box.row + r) * logical_cols + piece.box.col + c);
}

}  // namespace tessera::runtime
