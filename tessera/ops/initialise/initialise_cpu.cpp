#include <algorithm>
#include <array>

#include "tessera/ops/arithmetic.h"
#include "tessera/ops/initialise/initialise.h"
#include "tessera/ops/initialise/normal_stream.h"

namespace tessera::ops {
namespace {

constexpr std::int64_t kDrawnAtOnce = 64;

// Writes standard normal numbers for the indices first, first + 1, .... Bits and numbers are computed in separate
// loops, which can be vectorised.
void fill_chunk(const NormalStream& stream, std::uint64_t first, std::array<double, kDrawnAtOnce>& values) {
  std::array<std::uint64_t, kDrawnAtOnce> bits;
  for (std::uint64_t i = 0; i < kDrawnAtOnce; ++i) bits[i] = stream.bits(first + i);
  for (std::size_t i = 0; i < kDrawnAtOnce; ++i) values[i] = normal_quantile(open_uniform(bits[i]));
}

}  // namespace

void fill_normal(const NormalFill& fill, void* data, quant::DType type) {
  check_fill(fill);
  dispatch_floating(type, [&](auto element) {
    using T = decltype(element);
    const NormalStream stream(fill);
    std::array<double, kDrawnAtOnce> values;
    for (std::int64_t r = 0; r < fill.rows; ++r) {
      T* row = static_cast<T*>(data) + r * fill.stride;
      const std::int64_t first = (fill.row + r) * fill.logical_cols + fill.col;
      for (std::int64_t c = 0; c < fill.cols; c += kDrawnAtOnce) {
        fill_chunk(stream, static_cast<std::uint64_t>(first + c), values);
        const std::int64_t count = std::min(kDrawnAtOnce, fill.cols - c);
        for (std::int64_t i = 0; i < count; ++i)
          row[c + i] = round_to<T>(fill.standard_deviation * values[static_cast<std::size_t>(i)]);
      }
    }
  });
}

void fill_constant(double value, void* data, quant::DType type, std::int64_t count) {
  dispatch_floating(type, [&](auto element) {
    using T = decltype(element);
    const T rounded = round_to<T>(value);
    for (std::int64_t i = 0; i < count; ++i) static_cast<T*>(data)[i] = rounded;
  });
}

}  // namespace tessera::ops
