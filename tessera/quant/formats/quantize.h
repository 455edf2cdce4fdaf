// Matrices in an encoding: the definition, as loops on the host. Matrices are row-major without gaps; columns rise
// fastest.
//
// What is quantized is bf16: fp32 numbers are rounded to it first, so that a master gives the bytes of the weight that
// it stands for. A value is then multiplied by its tile's multiplier in fp32 and rounded to an element. Amaxes leave
// NaNs out and keep infinity.
//
// Elements of 4 bits lie two in a byte, that of the even column in the low half. Their matrices have an even number of
// columns.
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

// Elements [begin, end) of a matrix, counted by rows. Slices may begin and end anywhere, inside a tile or a byte too.
struct Slice {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
};

// The elements of a slice, from its first one on: bf16 or fp32.
struct Source {
  const void* data = nullptr;
  DType type = DType::bf16;
};

// A whole matrix in an encoding. Scales have the type scale_type() and the extent scale_extent(). tensor_amax: read
// where the scales are e4m3, and only there.
struct Quantized {
  std::uint8_t* data = nullptr;
  void* scales = nullptr;
  float* tensor_amax = nullptr;
};

// The tiles of a matrix, in the same order as its elements. A matrix without elements has a tile where one stands for
// all.
Extent scale_extent(const Encoding& encoding, Extent matrix);
DType scale_type(Scale scale);
// Bytes of this many elements. Errors: an odd number of 4-bit elements.
std::int64_t data_bytes(Element element, std::int64_t elements);
// Errors (Error): an extent that the encoding cannot store: 4-bit elements in an odd number of columns.
void check_extent(const Encoding& encoding, Extent matrix);

// Tiles [begin, end), which are whole rows of tiles, among which are all that a slice has elements of.
Slice touched_tiles(const ScaleTile& tile, Extent matrix, Slice slice);

// Takes the amaxes of the slice into `tiles`, one for each tile of the matrix, which hold amaxes already: the greater
// one stays.
void take_amaxes(const Source& source, Extent matrix, const ScaleTile& tile, Slice slice, std::span<float> tiles);
// Writes multipliers and scales of consecutive tiles from their amaxes, by tile_scale. `scales`: that of the first of
// these tiles first; null: they are not stored.
void make_scales(const Encoding& encoding, std::span<const float> amaxes, float tensor_amax,
                 std::span<float> multipliers, void* scales);
// The same by operand_scale.
void make_operand_scales(const Encoding& encoding, std::span<const float> amaxes, float tensor_amax,
                         std::span<float> multipliers, void* scales);
// Writes the elements of a slice. multipliers: of all tiles of the matrix. data: the byte that holds the slice's first
// element. Halves of bytes that belong to elements outside the slice keep what they are.
void cast(const Source& source, Extent matrix, const Encoding& encoding, Slice slice,
          std::span<const float> multipliers, std::uint8_t* data);

// All of it for a whole matrix. target.tensor_amax is written, unless null.
void quantize(const Source& source, Extent matrix, const Encoding& encoding, const Quantized& target);
// The values that a quantized matrix stands for, rounded to bf16.
void dequantize(const Quantized& source, Extent matrix, const Encoding& encoding, bfloat16* target);
// The same in fp32, as a product multiplies them.
void dequantize(const Quantized& source, Extent matrix, const Encoding& encoding, float* target);

// The transposed matrix [cols, rows]: its elements and its scales are those of the source, so it has the encoding with
// the transposed tile. Errors: as check_extent, of either matrix. Only tests call it: the definition of the CUDA
// kernel.
void transpose(const Quantized& source, Extent matrix, const Encoding& encoding, const Quantized& target);

}  // namespace tessera::quant
