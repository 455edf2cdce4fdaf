// How the GPU kernels divide a matrix among blocks and threads, and which tiles of scales a thread covers. The
// functions are pure, and the host also calls them.
#pragma once
#include <algorithm>
#include <cstdint>

#include "tessera/base/host_device.h"
#include "tessera/quant/formats/quantize.h"

namespace tessera::quant {

// A matrix is divided into pieces of kPieceRows x kPieceCols elements, one for each thread block. A warp covers
// kWarpRows adjacent rows of a piece. Each lane covers kVector adjacent columns of these rows.
inline constexpr int kPieceThreads = 256;
inline constexpr int kVector = 8;
inline constexpr int kWarpRows = 16;
inline constexpr std::int64_t kPieceRows = std::int64_t{kPieceThreads / 32} * kWarpRows;
inline constexpr std::int64_t kPieceCols = std::int64_t{32} * kVector;

// How the kWarpRows x kVector elements of a lane are distributed over tiles.
enum class Walk : std::uint8_t {
  band,    // all elements of a lane belong to one tile
  row,     // the elements of each row belong to one tile, and a tile has one row
  column,  // the elements of each column belong to one tile, and a tile has one column
  any,     // any other distribution
};

constexpr std::int64_t pieces_of(std::int64_t size, std::int64_t piece) {
  return (size + piece - 1) / piece;
}

// The tiles of a matrix.
struct Tiling {
  std::int64_t rows = 1, cols = 1;  // rows and columns of a tile
  std::int64_t across = 1;          // number of tiles in a row of tiles
  Walk walk = Walk::any;
  int lanes = 1;  // adjacent lanes of a warp that share a tile: 1, 2, 4, 8, 16 or 32

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
