// A square of a bf16 matrix in the registers of a block, and its fp8 codes by rows and by columns.
#pragma once
#include "tessera/quant/cuda/byte_tile.cuh"
#include "tessera/quant/cuda/vectors.cuh"

namespace tessera::quant::cuda {

// Where a square begins, of a matrix and of the padded results.
struct SquareTile {
  Extent matrix, padded;
  std::int64_t row, col;

  __device__ SquareTile(Extent matrix, Extent padded, unsigned number) : matrix(matrix), padded(padded) {
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

// Eight elements of a row; those behind the matrix are 0. stride: elements from row to row of the source. whole: rows
// begin at multiples of 16 bytes.
__device__ inline uint4 load_row(const bfloat16* source, std::int64_t stride, const SquareTile& square, int part, int r,
                                 bool whole) {
  const std::int64_t row = square.row + SquarePlace::row(part) + r, col = square.col + SquarePlace::col();
  const std::int64_t rest = square.matrix.cols - col;
  const bfloat16* from = source + row * stride + col;
  if (row >= square.matrix.rows || rest <= 0) return {0, 0, 0, 0};
  return whole ? *reinterpret_cast<const uint4*>(from) : load_part(from, rest);
}
__device__ inline void load_square(const bfloat16* source, const SquareTile& square, bool whole,
                                   SquareVectors& vectors) {
#pragma unroll
  for (int part = 0; part < SquarePlace::kParts; ++part)
#pragma unroll
    for (int r = 0; r < SquarePlace::kRows; ++r)
      vectors[part][r] = load_row(source, square.matrix.cols, square, part, r, whole);
}

// Eight elements, multiplied and rounded to fp8. amaxes: takes their greatest magnitudes.
template <Element kElement>
__device__ void encode_words(const uint4& words, float multiplier, std::uint32_t& amaxes, std::uint32_t (&codes)[2]) {
  amaxes = greater_magnitudes(greater_magnitudes(amaxes, words.x), words.y);
  amaxes = greater_magnitudes(greater_magnitudes(amaxes, words.z), words.w);
  float values[kVector];
  unpack(words, values);
#pragma unroll
  for (int i = 0; i < kVector; ++i) values[i] *= multiplier;
  encode_vector<kElement>(values, codes);
}

// Raises an amax, unless it is null, by what the threads of the block have taken. Contains a barrier.
__device__ inline void raise_amax(float* amax, std::uint32_t amaxes, float* scratch) {
  if (amax == nullptr) return;
  const float greatest = block_greatest(fmaxf(low_half(amaxes), high_half(amaxes)), scratch);
  if (threadIdx.x == 0) raise(amax, greatest);
}

// Writes eight codes of a row. stride: bytes from row to row of the result.
__device__ inline void store_row(std::uint8_t* rowwise, std::int64_t stride, const SquareTile& square, int part, int r,
                                 const std::uint32_t (&codes)[2]) {
  const std::int64_t row = square.row + SquarePlace::row(part) + r, col = square.col + SquarePlace::col();
  if (row < square.padded.rows && col < square.padded.cols)
    *reinterpret_cast<uint2*>(rowwise + row * stride + col) = {codes[0], codes[1]};
}

// Errors: a padded extent that is no multiple of 16 or less than the matrix; results that begin at no multiple of 16.
void check_square_tile(const char* what, Extent matrix, Extent padded, const void* rowwise, const void* columnwise);

}  // namespace tessera::quant::cuda
