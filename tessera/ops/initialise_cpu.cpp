#include <algorithm>
#include <array>

#include "tessera/ops/element.h"
#include "tessera/ops/initialise.h"
#include "tessera/ops/normal.h"
#include "tessera/ops/philox.h"

namespace tessera::ops {
namespace {

// FNV-1a, 64 bits (Fowler, Noll, Vo).
std::uint64_t hash_of(std::string_view name) {
  std::uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return hash;
}

std::uint32_t low(std::uint64_t value) {
  return static_cast<std::uint32_t>(value);
}
std::uint32_t high(std::uint64_t value) {
  return static_cast<std::uint32_t>(value >> 32);
}

constexpr std::int64_t kChunk = 64;

// Standard normals of the indices first, first + 1, ...: bits, then numbers, in loops that can be vectorised.
struct Stream {
  std::uint64_t seed, name_hash;
};
void fill_chunk(const Stream& stream, std::uint64_t first, std::array<double, kChunk>& values) {
  std::array<std::uint64_t, kChunk> bits;
  for (std::uint64_t i = 0; i < kChunk; ++i) {
    const std::uint64_t index = first + i;
    const PhiloxCounter random = philox({low(index), high(index), low(stream.name_hash), high(stream.name_hash)},
                                        {low(stream.seed), high(stream.seed)});
    bits[i] = std::uint64_t{random[1]} << 32 | random[0];
  }
  for (std::size_t i = 0; i < kChunk; ++i) values[i] = normal_quantile(open_uniform(bits[i]));
}

}  // namespace

void fill_normal(const NormalFill& fill, void* data, base::DType type) {
  TESSERA_CHECK(fill.rows >= 0 && fill.cols >= 0 && fill.row >= 0 && fill.col >= 0,
                "initial values of {}: rows {}, cols {} from ({}, {}): expected none below 0", fill.name, fill.rows,
                fill.cols, fill.row, fill.col);
  TESSERA_CHECK(fill.rows == 0 || fill.cols == 0 || fill.col + fill.cols <= fill.logical_cols,
                "initial values of {}: columns {}..{} of {} logical columns", fill.name, fill.col, fill.col + fill.cols,
                fill.logical_cols);
  dispatch_floating(type, [&](auto element) {
    using T = decltype(element);
    const Stream stream{.seed = fill.seed, .name_hash = hash_of(fill.name)};
    std::array<double, kChunk> values;
    for (std::int64_t r = 0; r < fill.rows; ++r) {
      T* row = static_cast<T*>(data) + r * fill.stride;
      const std::int64_t first = (fill.row + r) * fill.logical_cols + fill.col;
      for (std::int64_t c = 0; c < fill.cols; c += kChunk) {
        fill_chunk(stream, static_cast<std::uint64_t>(first + c), values);
        const std::int64_t count = std::min(kChunk, fill.cols - c);
        for (std::int64_t i = 0; i < count; ++i)
          row[c + i] = round_to<T>(fill.standard_deviation * values[static_cast<std::size_t>(i)]);
      }
    }
  });
}

void fill_constant(double value, void* data, base::DType type, std::int64_t count) {
  dispatch_floating(type, [&](auto element) {
    using T = decltype(element);
    const T rounded = round_to<T>(value);
    for (std::int64_t i = 0; i < count; ++i) static_cast<T*>(data)[i] = rounded;
  });
}

}  // namespace tessera::ops
