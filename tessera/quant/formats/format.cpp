#include "tessera/quant/formats/format.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::quant {
namespace {
// The encodings of weights for all formats except bf16, in the order of Format.
constexpr std::array<Encoding, kFormats - 1> kEncodings{
    {{.element = Element::e4m3, .scale = Scale::fp32},
     {.element = Element::e4m3, .scale = Scale::fp32, .tile = {128, 128}, .powers_of_two = true},
     {.element = Element::e4m3, .scale = Scale::e8m0, .tile = {1, 32}},
     {.element = Element::e2m1, .scale = Scale::e4m3, .tile = {16, 16}}}};
// The encodings of activations and gradients, in the order of Format.
constexpr std::array<Encoding, kFormats - 1> kRowEncodings{
    {{.element = Element::e4m3, .scale = Scale::fp32},
     {.element = Element::e4m3, .scale = Scale::fp32, .tile = {1, 128}, .powers_of_two = true},
     {.element = Element::e4m3, .scale = Scale::e8m0, .tile = {1, 32}},
     {.element = Element::e2m1, .scale = Scale::e4m3, .tile = {1, 16}}}};

const Encoding& encoding_of(const std::array<Encoding, kFormats - 1>& encodings, Format format, const char* what) {
  if (format == Format::bf16) throw Error("{}: expected a format with scales, got bf16", what);
  return encodings[static_cast<std::size_t>(format) - 1];
}
}  // namespace

Format parse_format(std::string_view name) {
  const auto found = std::ranges::find(kFormatNames, name);
  if (found == kFormatNames.end())
    throw InputError("unknown number format '{}': expected one of {}", name, fmt::join(kFormatNames, ", "));
  return static_cast<Format>(found - kFormatNames.begin());
}

Encoding weight_encoding(Format format) {
  return encoding_of(kEncodings, format, "weight_encoding");
}

Encoding columnwise_encoding(Format format) {
  Encoding encoding = weight_encoding(format);
  std::swap(encoding.tile.rows, encoding.tile.cols);
  return encoding;
}

Encoding input_encoding(Format format) {
  return encoding_of(kRowEncodings, format, "input_encoding");
}

Encoding gradient_encoding(Format format, Fp8Recipe recipe) {
  Encoding encoding = encoding_of(kRowEncodings, format, "gradient_encoding");
  if (format == Format::fp8 && recipe == Fp8Recipe::hybrid) encoding.element = Element::e5m2;
  return encoding;
}

Format format_of(const Encoding& encoding) {
  Encoding across = encoding;
  std::swap(across.tile.rows, across.tile.cols);
  const auto found =
      std::ranges::find_if(kEncodings, [&](const Encoding& known) { return known == encoding || known == across; });
  if (found == kEncodings.end()) throw Error("format_of: no format has this encoding of weights");
  return static_cast<Format>(found - kEncodings.begin() + 1);
}

}  // namespace tessera::quant
