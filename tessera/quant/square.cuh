// A square of a bf16 matrix in the registers of a block, and its fp8 codes by rows and by columns.
#pragma once
#include "tessera/quant/byte_tile.cuh"
#include "tessera/quant/vectors.cuh"

namespace tessera::quant::cuda {

// Where a square begins, of a matrix and of the padded results.
struct Square {
  Extent matrix, padded;
  std::int64_t row, col;

  __device__ Square(Extent matrix, Extent padded, unsigned number) : matrix(matrix), padded(padded) {
    const auto across = static_cast<unsigned>(pieces_of(padded.cols, SquarePlace::kSide));
    row = static_cast<std::int64_t>(number / across) * SquarePlace::kSide;
    col = static_cast<std::int64_t>(number % across) * SquarePlace::kSide;
  }
};

inline unsigned squares_of(Extent padded) {
  return checked_blocks(pieces_of(padded.rows, SquarePlace::kSide) * pieces_of(padded.cols, SquarePlace::kSide));
}

// The elements of a thread, as words of two.
using SquareVectors = uint4[SquarePlace::kParts][SquarePlace::kRows];

// whole: rows begin at multiples of 16 bytes. Elements behind the matrix are 0.
__device__ inline void load_square(const bfloat16* source, const Square& square, bool whole, SquareVectors& vectors) {
  const std::int64_t col = square.col + SquarePlace::col(), rest = square.matrix.cols - col;
#pragma unroll
  for (int part = 0; part < SquarePlace::kParts; ++part)
#pragma unroll
    for (int r = 0; r < SquarePlace::kRows; ++r) {
      const std::int64_t row = square.row + SquarePlace::row(part) + r;
      const bfloat16* from = source + row * square.matrix.cols + col;
      vectors[part][r] = {0, 0, 0, 0};
      if (row >= square.matrix.rows || rest <= 0) continue;
      if (whole)
        vectors[part][r] = *reinterpret_cast<const uint4*>(from);
      else
        vectors[part][r] = load_part(from, rest);
    }
}

// Writes eight codes of a row.
__device__ inline void store_row(std::uint8_t* rowwise, const Square& square, int part, int r,
                                 const std::uint32_t (&codes)[2]) {
  const std::int64_t row = square.row + SquarePlace::row(part) + r, col = square.col + SquarePlace::col();
  if (row < square.padded.rows && col < square.padded.cols)
    *reinterpret_cast<uint2*>(rowwise + row * square.padded.cols + col) = {codes[0], codes[1]};
}

// Errors: a padded extent that is no multiple of 16 or less than the matrix; results that begin at no multiple of 16.
void check_square(const char* what, Extent matrix, Extent padded, const void* rowwise, const void* columnwise);

}  // namespace tessera::quant::cuda
