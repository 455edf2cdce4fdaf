// Where a GEMM of Blackwell wants the scales of a matrix whose scales are bytes: an array of its own, padded with
// zeros, then swizzled. Both are made after a gather; what is stored and sent is compact (quantize.h).
#pragma once
#include <cstdint>

#include "tessera/quant/formats/encoding.h"
#include "tessera/quant/formats/quantize.h"

namespace tessera::quant {

// The extent of the padded scales. A GEMM has one scale for each block of a tile's length along the dimension that its
// product sums over; that is along the columns, or along the rows for tiles of one column. Blocks are padded to a
// multiple of 4, the other dimension to one of 128:
//   1 x B, B x B   [round128(rows), round4(ceil(cols / B))]
//   B x 1          [round4(ceil(rows / B)), round128(cols)]
// Errors: a tile of another shape; scales that are not bytes.
Extent padded_scale_extent(const Encoding& encoding, Extent matrix);

// Writes the padded scales from the compact ones. The scale of a tile of several rows and columns stands once for each
// of its rows. Padding is zero. Errors: as padded_scale_extent. Only tests call it: the definition of
// the CUDA kernel.
void pad_scales(const std::uint8_t* scales, Extent matrix, const Encoding& encoding, std::uint8_t* padded);

// Where the scale of a block lies among swizzled ones, in bytes. line: of the dimension that is padded to 128. blocks:
// of a line, padded or not. Source: the documentation of cuBLAS, "1D Block Scaling Factors Layout", which has tiles of
// 128 lines and 4 blocks.
constexpr std::int64_t swizzled_offset(std::int64_t line, std::int64_t block, std::int64_t blocks) {
  const std::int64_t tile = line / 128 * ((blocks + 3) / 4) + block / 4;
  return tile * 512 + line % 32 * 16 + line % 128 / 32 * 4 + block % 4;
}

// Writes padded scales in swizzled order, as many bytes. Errors: as padded_scale_extent. Only tests call it: the
// definition of the CUDA kernel.
void swizzle_scales(const std::uint8_t* padded, Extent matrix, const Encoding& encoding, std::uint8_t* swizzled);

}  // namespace tessera::quant
