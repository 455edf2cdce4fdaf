// Floating element types as C++ types: the type in which arithmetic is done, and dispatch from a DType to a C++ type.
#pragma once
#include <type_traits>

#include "tessera/base/host_device.h"
#include "tessera/quant/bfloat16.h"
#include "tessera/quant/dtype.h"
#include "tessera/quant/rounding.h"

namespace tessera::quant {

// The type in which arithmetic is done: float for bf16 and float, double for double.
template <typename T>
using Accumulator = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <typename T>
TESSERA_HOST_DEVICE inline Accumulator<T> load(T value) {
  return round_to<Accumulator<T>>(value);
}

// Throws an Error with `where`, the type and the expected types.
[[noreturn]] void refuse_type(DType type, const char* expected, const char* where);

// Calls visit(T{}), where T is the C++ type of a floating `type`. Throws Error for another type; the message begins
// with `where`.
template <typename Visit>
void dispatch_floating(DType type, const char* where, Visit&& visit) {
  switch (type) {
    case DType::bf16:
      return visit(bfloat16{});
    case DType::fp32:
      return visit(float{});
    case DType::fp64:
      return visit(double{});
    default:
      refuse_type(type, "a floating type", where);
  }
}
template <typename Visit>
void dispatch_floating(DType type, Visit&& visit) {
  dispatch_floating(type, "element type", visit);
}
// Like dispatch_floating, for an accumulator type: fp32 or fp64.
template <typename Visit>
void dispatch_accumulator(DType type, const char* where, Visit&& visit) {
  if (type == DType::fp32) return visit(float{});
  if (type == DType::fp64) return visit(double{});
  refuse_type(type, "an accumulator of fp32 or fp64", where);
}
template <typename Visit>
void dispatch_accumulator(DType type, Visit&& visit) {
  dispatch_accumulator(type, "element type", visit);
}

}  // namespace tessera::quant
