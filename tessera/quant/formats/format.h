// The number formats that a user can select, and the encoding of a weight in each format.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tessera/quant/formats/encoding.h"

namespace tessera::quant {

//   bf16       no scales
//   fp8        E4M3, one fp32 scale for the whole matrix
//   fp8_block  E4M3, one fp32 scale, a power of two, for each 128 x 128 tile
//   mxfp8      E4M3, one E8M0 scale for each 32 elements of a row
//   nvfp4      E2M1, one E4M3 scale for each 16 x 16 tile, and one fp32 number for the whole matrix
enum class Format : std::uint8_t { bf16, fp8, fp8_block, mxfp8, nvfp4 };

inline constexpr std::array<std::string_view, 5> kFormatNames{"bf16", "fp8", "fp8_block", "mxfp8", "nvfp4"};
inline constexpr std::size_t kFormats = kFormatNames.size();

constexpr std::string_view name_of(Format format) {
  return kFormatNames[static_cast<std::size_t>(format)];
}
// Throws InputError for an unknown name.
Format parse_format(std::string_view name);

// Returns the encoding in which a weight is stored and sent. It is the rowwise encoding, for products that sum over the
// columns of the weight. Throws Error for bf16, which has no encoding.
Encoding weight_encoding(Format format);
// Returns the columnwise encoding of a weight, for products that sum over the rows of the weight. The tiles of this
// encoding extend along the columns of the matrix. If tiles are square, the encoding equals weight_encoding. Throws
// Error for bf16.
Encoding columnwise_encoding(Format format);
// The element types of fp8, the format with one scale for a whole matrix. hybrid: gradients are E5M2, which has the
// range of fp16; weights and inputs are E4M3. e4m3: gradients are E4M3 too. The other formats have one element type
// each.
enum class Fp8Recipe : std::uint8_t { hybrid, e4m3 };

// Return the encoding of a product's input, and the encoding of the gradient of a product's output. Tiles extend along
// a row, because the product sums over the columns. Throw Error for bf16.
Encoding input_encoding(Format format);
Encoding gradient_encoding(Format format, Fp8Recipe recipe);

// Returns the format whose weights have this encoding, rowwise or columnwise. Throws Error if no format has this
// encoding.
Format format_of(const Encoding& encoding);

}  // namespace tessera::quant
