#include "tessera/quant/format.h"

#include <array>

#include "tessera/base/error.h"

namespace tessera::quant {
namespace {
struct NamedFormat {
  Format format;
  std::string_view name;
  Encoding encoding;
};
constexpr std::array<NamedFormat, kFormats> kNamed{
    {{.format = Format::bf16, .name = "bf16"},
     {.format = Format::fp8, .name = "fp8", .encoding = {.element = Element::e4m3, .scale = Scale::fp32}},
     {.format = Format::fp8_block,
      .name = "fp8_block",
      .encoding = {.element = Element::e4m3, .scale = Scale::fp32, .tile = {128, 128}, .powers_of_two = true}},
     {.format = Format::mxfp8,
      .name = "mxfp8",
      .encoding = {.element = Element::e4m3, .scale = Scale::e8m0, .tile = {1, 32}}},
     {.format = Format::nvfp4,
      .name = "nvfp4",
      .encoding = {.element = Element::e2m1, .scale = Scale::e4m3, .tile = {16, 16}}}}};
}  // namespace

std::string_view name_of(Format format) {
  for (const NamedFormat& entry : kNamed)
    if (entry.format == format) return entry.name;
  return "?";
}

Format parse_format(std::string_view name) {
  for (const NamedFormat& entry : kNamed)
    if (entry.name == name) return entry.format;
  throw InputError("unknown number format '{}': expected one of bf16, fp8, fp8_block, mxfp8, nvfp4", name);
}

Encoding weight_encoding(Format format) {
  for (const NamedFormat& entry : kNamed)
    if (entry.format == format && format != Format::bf16) return entry.encoding;
  throw Error("weight_encoding: expected a format with scales, got {}", name_of(format));
}

Format format_of(const Encoding& encoding) {
  for (const NamedFormat& entry : kNamed)
    if (entry.format != Format::bf16 && entry.encoding == encoding) return entry.format;
  throw Error("format_of: no format has this encoding of weights");
}

}  // namespace tessera::quant
