// The layout in which a GEMM on Blackwell reads scales of one byte. The scales are padded with zeros and then swizzled,
// in a separate array. Both steps run after a gather. Scales are stored and sent in the compact form of quantize.h. The
// functions are for callers with a product of their own; training does not use them. The arrays are host memory.
// CudaTable (cuda_table.h) has the same functions for GPU memory.
#pragma once
#include <cstdint>

#include "tessera/quant/formats/encoding.h"
#include "tessera/quant/formats/quantize.h"

namespace tessera::quant {

// Returns the extent of the padded scales. A GEMM reads one scale for each block of B elements along the dimension that
// it sums over, where B is the length of a tile. This dimension is the columns, or the rows if a tile has one column.
// The number of blocks is padded to a multiple of 4, and the other dimension to a multiple of 128:
//   1 x B, B x B   [round128(rows), round4(ceil(cols / B))]
//   B x 1          [round4(ceil(rows / B)), round128(cols)]
// Throws Error for other tile shapes and for scales that are not bytes.
Extent padded_scale_extent(const Encoding& encoding, Extent matrix);

// Writes the padded scales from the compact scales. If a tile has several rows and columns, its scale is repeated for
// each of its rows. Padding is zero. Throws the errors of padded_scale_extent. This function defines the results of the
// CUDA kernel.
void pad_scales(const std::uint8_t* scales, Extent matrix, const Encoding& encoding, std::uint8_t* padded);

// Returns the byte offset of a block's scale in the swizzled array. `line` is the index in the dimension that is padded
// to a multiple of 128. `block` is the index of the block in its line. `blocks` is the number of blocks in a line, with
// or without padding. Source: cuBLAS documentation, "1D Block Scaling Factors Layout", with tiles of 128 lines and 4
// blocks.
constexpr std::int64_t swizzled_offset(std::int64_t line, std::int64_t block, std::int64_t blocks) {
  const std::int64_t tile = line / 128 * ((blocks + 3) / 4) + block / 4;
  return tile * 512 + line % 32 * 16 + line % 128 / 32 * 4 + block % 4;
}

// Writes the padded scales in swizzled order. Both arrays have the same size. Throws the errors of padded_scale_extent.
// This function defines the results of the CUDA kernel.
void swizzle_scales(const std::uint8_t* padded, Extent matrix, const Encoding& encoding, std::uint8_t* swizzled);

}  // namespace tessera::quant
