// Element types of buffers, files and messages.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera::quant {

enum class DType : std::uint8_t { u8, i32, i64, bf16, fp32, fp64 };

// Returns the bytes of one element.
constexpr std::size_t size_of(DType type) {
  switch (type) {
    case DType::u8:
      return 1;
    case DType::bf16:
      return 2;
    case DType::i32:
    case DType::fp32:
      return 4;
    case DType::i64:
    case DType::fp64:
      return 8;
  }
  return 0;
}

constexpr bool is_floating(DType type) {
  return type == DType::bf16 || type == DType::fp32 || type == DType::fp64;
}

// Returns the type of sums and of main_grad for a model of type `type`: fp64 for fp64, otherwise fp32
// (docs/numerics.md).
constexpr DType accumulator_of(DType type) {
  return type == DType::fp64 ? DType::fp64 : DType::fp32;
}

std::string_view name_of(DType type);      // for example "bf16"
DType parse_dtype(std::string_view name);  // throws InputError for an unknown name

}  // namespace tessera::quant
