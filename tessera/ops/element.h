// What the kernels share: the arithmetic type of a storage type, dispatch from a DType, and sums whose order
// depends on the number of terms alone. Internal to ops; no tensor library.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "tessera/base/host_device.h"
#include "tessera/quant/bfloat16.h"
#include "tessera/quant/dtype.h"

namespace tessera::ops {

// float for bf16 and float, double for double.
template <typename T>
using Accumulator = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <typename T>
TESSERA_HOST_DEVICE inline Accumulator<T> load(T value) {
  return static_cast<Accumulator<T>>(value);
}

// Rounded once to nearest even, from double to bf16 too: the float in between is rounded to odd (Boldo & Melquiond
// 2008).
template <typename T>
TESSERA_HOST_DEVICE inline T round_to(double value) {
  if constexpr (std::is_same_v<T, quant::bfloat16>) {
    const float nearest = static_cast<float>(value);
    const double back = nearest;
    auto bits = std::bit_cast<std::uint32_t>(nearest);
    const bool inexact_even = (bits & 1u) == 0 && (back < value || back > value);
    if (inexact_even) bits += std::abs(back) < std::abs(value) ? 1u : ~0u;
    return T(std::bit_cast<float>(bits));
  } else {
    return static_cast<T>(value);
  }
}
template <typename T>
TESSERA_HOST_DEVICE inline T round_to(float value) {
  return static_cast<T>(value);
}

// Throws an Error that says which types are expected.
[[noreturn]] void refuse_type(quant::DType type, const char* expected);
// Calls function(T{}) with T the C++ type of a floating `type`.
template <typename Function>
void dispatch_floating(quant::DType type, Function&& function) {
  switch (type) {
    case quant::DType::bf16:
      return function(quant::bfloat16{});
    case quant::DType::fp32:
      return function(float{});
    case quant::DType::fp64:
      return function(double{});
    default:
      refuse_type(type, "bf16, fp32 or fp64");
  }
}
// The same for an accumulator: fp32 or fp64.
template <typename Function>
void dispatch_accumulator(quant::DType type, Function&& function) {
  if (type == quant::DType::fp32) return function(float{});
  if (type == quant::DType::fp64) return function(double{});
  refuse_type(type, "fp32 or fp64");
}

// term(0) + ... + term(count - 1) in kLanes partial sums (term i goes to lane i mod kLanes), then a tree over the
// lanes.
inline constexpr int kLanes = 32;
template <typename A, typename Term>
inline A lane_sum(std::int64_t count, Term term) {
  A lanes[kLanes] = {};
  std::int64_t start = 0;
  for (; start + kLanes <= count; start += kLanes)
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += term(start + lane);
  for (int lane = 0; start + lane < count; ++lane) lanes[lane] += term(start + lane);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  return lanes[0];
}

}  // namespace tessera::ops
