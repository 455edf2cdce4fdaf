#include "tessera/quant/dtype.h"

#include <array>

#include "tessera/base/error.h"

namespace tessera::quant {
namespace {
struct Entry {
  DType type;
  std::string_view name;
};
constexpr std::array<Entry, 6> kTypes{{{DType::u8, "u8"},
                                       {DType::i32, "i32"},
                                       {DType::i64, "i64"},
                                       {DType::bf16, "bf16"},
                                       {DType::fp32, "fp32"},
                                       {DType::fp64, "fp64"}}};
}  // namespace

std::string_view name_of(DType type) {
  for (const Entry& entry : kTypes)
    if (entry.type == type) return entry.name;
  return "?";
}

DType parse_dtype(std::string_view name) {
  for (const Entry& entry : kTypes)
    if (entry.name == name) return entry.type;
  throw InputError("unknown element type '{}': expected one of u8, i32, i64, bf16, fp32, fp64", name);
}

}  // namespace tessera::quant
