// The number formats that a user can name, and what a weight is in each.
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
// Errors (InputError): an unknown name.
Format parse_format(std::string_view name);

// How a weight is stored and sent, for products along its columns (rowwise). Errors: bf16, which has no encoding.
Encoding weight_encoding(Format format);
// The same for products along its rows (columnwise): tiles lie along the columns of the matrix. Where tiles are square,
// it is weight_encoding. Errors: bf16.
Encoding columnwise_encoding(Format format);
// Element types of fp8 products whose scales belong to whole matrices. hybrid: gradients are E5M2, which has the range
// of fp16, the rest E4M3. e4m3: all are E4M3. Other formats have one element type.
enum class Fp8Recipe : std::uint8_t { hybrid, e4m3 };

// How an input of products is quantized, and the gradient of an output: tiles lie along a row, over which sums run.
// Errors: bf16.
Encoding input_encoding(Format format);
Encoding gradient_encoding(Format format, Fp8Recipe recipe);

// The format with this encoding of weights, rowwise or columnwise. Errors: none has it.
Format format_of(const Encoding& encoding);

}  // namespace tessera::quant
