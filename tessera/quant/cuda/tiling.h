// How the kernels on a GPU walk over a matrix, and the tiles that they meet there. Pure; the host uses it too.
#pragma once
#include <algorithm>
#include <cstdint>

#include "tessera/base/host_device.h"
#include "tessera/quant/formats/quantize.h"

namespace tessera::quant {

// A matrix is cut in pieces of kPieceRows x kPieceCols elements, one for each block of threads. A warp has a run of
// kWarpRows rows of a piece, and each of its lanes kVector neighbouring columns of them.
inline constexpr int kPieceThreads = 256;
inline constexpr int kVector = 8;
inline constexpr int kWarpRows = 16;
inline constexpr std::int64_t kPieceRows = std::int64_t{kPieceThreads / 32} * kWarpRows;
inline constexpr std::int64_t kPieceCols = std::int64_t{32} * kVector;

// What a lane's elements, kWarpRows x kVector, have in common.
enum class Walk : std::uint8_t {
  band,    // all lie in one tile
  row,     // those of one row lie in one tile, and tiles are one row high
  column,  // those of one column lie in one tile, and tiles are one column wide
  any,     // nothing
};

constexpr std::int64_t pieces_of(std::int64_t size, std::int64_t piece) {
  return (size + piece - 1) / piece;
}

// The tiles of a matrix.
struct Tiling {
  std::int64_t rows = 1, cols = 1;  // of a tile
  std::int64_t across = 1;          // tiles beside each other
  Walk walk = Walk::any;
  int lanes = 1;  // of a warp, which share a tile: 1, 2, 4, 8, 16 or 32

  Tiling() = default;
  Tiling(const ScaleTile& tile, Extent matrix)
      : rows(tile.rows == 0 ? std::max<std::int64_t>(matrix.rows, 1) : tile.rows),
        cols(tile.cols == 0 ? std::max<std::int64_t>(matrix.cols, 1) : tile.cols),
        across(std::max<std::int64_t>(pieces_of(matrix.cols, cols), 1)) {
    const bool all_cols = cols >= matrix.cols, all_rows = rows >= matrix.rows;
    if (all_cols || cols % kVector == 0)
      walk = all_rows || rows % kWarpRows == 0 ? Walk::band : rows == 1 ? Walk::row : Walk::any;
    else if (cols == 1 && (all_rows || rows % kWarpRows == 0))
      walk = Walk::column;
    if (walk != Walk::band && walk != Walk::row) return;
    while (lanes < 32 && (all_cols || cols % (std::int64_t{2} * lanes * kVector) == 0)) lanes *= 2;
  }

  TESSERA_HOST_DEVICE std::int64_t tile_of(std::int64_t row, std::int64_t col) const {
    return (rows == 1 ? row : row / rows) * across + (cols == 1 ? col : col / cols);
  }
};

}  // namespace tessera::quant
