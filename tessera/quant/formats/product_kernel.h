// How products in number formats are computed.
//   native   a GPU multiplies the codes
//   decoded  a device multiplies the values of the codes, in bf16 on a GPU. This emulates the products of hardware that
//            multiplies the codes (docs/formats.md)
#pragma once
#include <cstdint>
#include <string_view>

#include "tessera/quant/formats/format.h"

namespace tessera::quant {

enum class ProductKernel : std::uint8_t { native, decoded };

constexpr std::string_view name_of(ProductKernel kernel) {
  return kernel == ProductKernel::native ? "native" : "decoded";
}

// Returns true if products of this encoding multiply decoded values (decoded.h) on every device, and apply
// product_alpha to the sums.
constexpr bool is_decoded(const Encoding& encoding) {
  return encoding.scale != Scale::fp32;
}
// Returns true if the encodings of the format are decoded.
constexpr bool is_decoded(Format format) {
  return format == Format::mxfp8 || format == Format::nvfp4;
}

// Returns how a GPU or a CPU multiplies in a format. Products in bf16 are native.
constexpr ProductKernel kernel_of(Format format, bool is_gpu) {
  return format == Format::bf16 || (is_gpu && !is_decoded(format)) ? ProductKernel::native : ProductKernel::decoded;
}

}  // namespace tessera::quant
