// The pieces of a rank's state as ranges of its buffer.
#pragma once
#include <vector>

#include "tessera/layout/layout.h"
#include "tessera/ops/optimizer/state_rounding.h"

namespace tessera::train {

// Returns pieces that cover the same elements and whose rows are dense: a piece whose rows are apart becomes one piece
// for each row. Rows are apart where a rank has adopted columns of an unused place.
inline std::vector<layout::Piece> dense_pieces(const layout::LocalLayout& local) {
  std::vector<layout::Piece> pieces;
  for (const layout::Piece& piece : local.pieces) {
    if (piece.stride == piece.box.cols || piece.box.rows == 1) {
      pieces.push_back(piece);
      continue;
    }
    for (std::int64_t row = 0; row < piece.box.rows; ++row)
      pieces.push_back({.box = {piece.box.row + row, 1, piece.box.col, piece.box.cols},
                        .offset = piece.offset + row * piece.stride,
                        .stride = piece.box.cols});
  }
  return pieces;
}

// Returns the positions of a dense piece's elements in the flattened logical matrix.
inline ops::LogicalIndices logical_indices(const layout::Piece& piece, std::int64_t logical_cols) {
  ops::LogicalIndices indices{.first = piece.box.row * logical_cols + piece.box.col};
  if (piece.box.cols != logical_cols) indices.row = piece.box.cols, indices.stride = logical_cols;
  return indices;
}

}  // namespace tessera::train
