// Quantization of matrices, as loops on the host. This code defines the results, and the GPU kernels give the same
// bytes. Matrices are dense and row-major.
//
// Values are quantized from bf16. fp32 values are first rounded to bf16, so that a master gives the same bytes as its
// bf16 weight. Then each value is multiplied in fp32 by the multiplier of its tile, and the product is rounded to the
// element type. Amaxes ignore NaNs and include infinities.
//
// Two 4-bit elements share a byte; the element of the even column is in the low half. Matrices of 4-bit elements have
// an even number of columns.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/quant/bfloat16.h"
#include "tessera/quant/dtype.h"
#include "tessera/quant/formats/encoding.h"

namespace tessera::quant {

struct Extent {
  std::int64_t rows = 0, cols = 0;
  std::int64_t elements() const { return rows * cols; }
  bool operator==(const Extent&) const = default;
};

// Elements [begin, end) of a matrix in row-major order. A slice may begin and end inside a tile or a byte.
struct Slice {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
};

// The elements of a slice as bf16 or fp32. `data` points to the first element of the slice.
struct Source {
  const void* data = nullptr;
  DType type = DType::bf16;
};

// A whole matrix in an encoding. The scales have the type scale_type() and the extent scale_extent(). tensor_amax is
// read only if the scales are e4m3. A stack of equal matrices has the elements, the scales and the amaxes of its
// matrices one after the other.
struct Quantized {
  std::uint8_t* data = nullptr;
  void* scales = nullptr;
  float* tensor_amax = nullptr;
};

// Returns the number of tile rows and tile columns of a matrix. Tiles are ordered row by row, as elements are. If the
// encoding has one tile for the whole matrix, a matrix without elements still has one tile.
Extent scale_extent(const Encoding& encoding, Extent matrix);
DType scale_type(Scale scale);
// Returns the bytes of `elements` elements. Throws Error for an odd number of 4-bit elements.
std::int64_t data_bytes(Element element, std::int64_t elements);
// Returns the addresses of matrix `number` of a stack whose matrices have the extent `matrix`. The encoding must be
// able to store the matrix.
Quantized matrix_of(const Quantized& stack, std::int64_t number, Extent matrix, const Encoding& encoding);
// Throws Error if the encoding cannot store the matrix. This is the case for 4-bit elements and an odd number of
// columns.
void check_extent(const Encoding& encoding, Extent matrix);

// Returns a range of tiles that contains every tile with an element of the slice. The range consists of whole rows of
// tiles.
Slice touched_tiles(const ScaleTile& tile, Extent matrix, Slice slice);

// Raises the amax of each tile to the greatest magnitude of the slice's elements in this tile. `tiles` holds one amax
// for each tile of the matrix.
void take_amaxes(const Source& source, Extent matrix, const ScaleTile& tile, Slice slice, std::span<float> tiles);
// Computes tile_scale for consecutive tiles from their amaxes, and writes the multipliers and the scales. `scales`
// points to the scale of the first of these tiles. If `scales` is null, scales are not written.
void make_scales(const Encoding& encoding, std::span<const float> amaxes, float tensor_amax,
                 std::span<float> multipliers, void* scales);
// Like make_scales, but with operand_scale instead of tile_scale.
void make_operand_scales(const Encoding& encoding, std::span<const float> amaxes, float tensor_amax,
                         std::span<float> multipliers, void* scales);
// Writes the elements of a slice. `multipliers` holds one number for each tile of the matrix. `data` points to the byte
// with the first element of the slice. If half of a byte belongs to an element outside the slice, this half does not
// change.
void cast(const Source& source, Extent matrix, const Encoding& encoding, Slice slice,
          std::span<const float> multipliers, std::uint8_t* data);

// Computes amaxes, scales and elements of a whole matrix. Writes target.tensor_amax unless it is null.
void quantize(const Source& source, Extent matrix, const Encoding& encoding, const Quantized& target);
// Writes the values of a quantized matrix, rounded to bf16.
void dequantize(const Quantized& source, Extent matrix, const Encoding& encoding, bfloat16* target);
// Writes the values of a quantized matrix in fp32. A scaled product multiplies these values.
void dequantize(const Quantized& source, Extent matrix, const Encoding& encoding, float* target);

// How to transpose a stack of quantized matrices. `matrix` is the extent of one matrix of the source. A transposed
// matrix [matrix.cols, matrix.rows] has the same elements and scales as its source, so its encoding has the transposed
// tile.
//
// `padded` is the extent of the codes of one transposed matrix, and `scale_cols` the number of scales in a row of its
// scales. Both may be larger than the transposed matrix needs; the codes and the scales outside of it are set to 0. If
// `padded` is empty or `scale_cols` is 0, the result has this extent without padding.
struct Transposition {
  Quantized source;
  Extent matrix;
  Encoding encoding;
  Quantized target;
  Extent padded;
  std::int64_t scale_cols = 0;
  std::int64_t matrices = 1;

  Extent codes() const { return padded == Extent{} ? Extent{matrix.cols, matrix.rows} : padded; }
  // Returns the extent of the scales of one transposed matrix.
  Extent scales() const;
};
// Throws Error if check_extent fails for the source or for the result, or if the result has no room for a transposed
// matrix.
void check_transposition(const Transposition& weight);
// Transposes each matrix of the stack. Throws the errors of check_transposition. This function defines the results of
// the CUDA kernel.
void transpose(const Transposition& weight);

}  // namespace tessera::quant
