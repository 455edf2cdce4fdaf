// A square of 128 x 128 elements of a bf16 matrix in the registers of a thread block, and its fp8 codes by rows and by
// columns.
#pragma once
#include "tessera/quant/cuda/byte_tile.cuh"
#include "tessera/quant/cuda/vectors.cuh"

namespace tessera::quant::cuda {

// The position of a square in the matrix and in the padded results. `number` counts the squares row by row.
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

// The elements that one thread holds. Each 32-bit word holds two elements.
using SquareVectors = uint4[SquarePlace::kParts][SquarePlace::kRows];

// Loads eight elements of a row; elements outside the matrix are 0. `stride` is the number of elements from one row of
// the source to the next. If `whole` is true, rows must begin at multiples of 16 bytes.
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

// Multiplies eight elements by `multiplier` and rounds the products to fp8. Raises the two amaxes in `amaxes` to the
// magnitudes of the elements.
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

// Raises *amax to the greatest of the `amaxes` of all threads of the block. Does nothing if `amax` is null. Contains a
// barrier.
__device__ inline void raise_amax(float* amax, std::uint32_t amaxes, float* scratch) {
  if (amax == nullptr) return;
  const float greatest = block_greatest(fmaxf(low_half(amaxes), high_half(amaxes)), scratch);
  if (threadIdx.x == 0) raise(amax, greatest);
}

// Writes eight codes of a row. `stride` is the number of bytes from one row of the result to the next.
__device__ inline void store_row(std::uint8_t* rowwise, std::int64_t stride, const SquareTile& square, int part, int r,
                                 const std::uint32_t (&codes)[2]) {
  const std::int64_t row = square.row + SquarePlace::row(part) + r, col = square.col + SquarePlace::col();
  if (row < square.padded.rows && col < square.padded.cols)
    *reinterpret_cast<uint2*>(rowwise + row * stride + col) = {codes[0], codes[1]};
}

// Throws Error if a side of the padded extent is not a multiple of 16 or is smaller than the matrix, or if a result
// does not begin at a multiple of 16 bytes.
void check_square_tile(const char* what, Extent matrix, Extent padded, const void* rowwise, const void* columnwise);

}  // namespace tessera::quant::cuda
