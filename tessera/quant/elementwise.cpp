#include "tessera/quant/elementwise.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/quant/floating.h"

namespace tessera::quant {
namespace {

// The number of elements that are summed together. The sum of one block stays in the first-level cache while every part
// is read once.
constexpr std::int64_t kBlock = 2048;
// The number of parts that are added in one pass over a block.
constexpr std::size_t kPartsAtOnce = 8;

template <typename To, typename From>
void cast_loop(const From* source, To* target, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) target[i] = round_to<To>(source[i]);
}

// out[i] = start + parts[0][i] + ... + parts[kParts - 1][i] in Acc, where start is out[i] if kFromOut is true. A part
// and out may be the same memory. Each iteration then reads and writes only its own element, so `ivdep` is valid.
template <typename Acc, bool kFromOut, std::size_t kParts, typename Out, typename Part>
void add_parts(Out* out, const std::array<const Part*, kPartsAtOnce> parts, std::int64_t count) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < count; ++i) {
    Acc value = kFromOut ? round_to<Acc>(out[i]) : round_to<Acc>(parts[0][i]);
    for (std::size_t p = kFromOut ? 0 : 1; p < kParts; ++p) value += round_to<Acc>(parts[p][i]);
    out[i] = round_to<Out>(value);
  }
}

template <typename Acc, bool kFromOut, typename Out, typename Part>
void add_parts(Out* out, const std::array<const Part*, kPartsAtOnce>& parts, std::size_t used, std::int64_t count) {
  switch (used) {
    case 1:
      return add_parts<Acc, kFromOut, 1>(out, parts, count);
    case 2:
      return add_parts<Acc, kFromOut, 2>(out, parts, count);
    case 3:
      return add_parts<Acc, kFromOut, 3>(out, parts, count);
    case 4:
      return add_parts<Acc, kFromOut, 4>(out, parts, count);
    case 5:
      return add_parts<Acc, kFromOut, 5>(out, parts, count);
    case 6:
      return add_parts<Acc, kFromOut, 6>(out, parts, count);
    case 7:
      return add_parts<Acc, kFromOut, 7>(out, parts, count);
    default:
      return add_parts<Acc, kFromOut, 8>(out, parts, count);
  }
}

// Returns the addresses of element `begin` in up to kPartsAtOnce parts.
template <typename Part>
std::array<const Part*, kPartsAtOnce> shifted(std::span<const void* const> parts, std::int64_t begin) {
  std::array<const Part*, kPartsAtOnce> pointers{};
  for (std::size_t p = 0; p < parts.size(); ++p) pointers[p] = static_cast<const Part*>(parts[p]) + begin;
  return pointers;
}

template <typename Acc, typename Part>
void sum_block(Acc* sum, bool accumulate, std::span<const void* const> parts, std::int64_t begin, std::int64_t count) {
  for (std::size_t first = 0; first < parts.size(); first += kPartsAtOnce) {
    const std::size_t used = std::min(kPartsAtOnce, parts.size() - first);
    const auto pointers = shifted<Part>(parts.subspan(first, used), begin);
    if (accumulate || first > 0)
      add_parts<Acc, true>(sum, pointers, used, count);
    else
      add_parts<Acc, false>(sum, pointers, used, count);
  }
}

template <typename Acc, typename Part>
void ordered_sum_loop(Acc* sum, bool accumulate, std::span<const void* const> parts, std::int64_t count) {
  const bool one_pass = parts.size() <= kPartsAtOnce;
  std::array<Acc, kBlock> scratch;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t size = std::min(kBlock, count - begin);
    if (one_pass) {
      sum_block<Acc, Part>(sum + begin, accumulate, parts, begin, size);
      continue;
    }
    // With several passes the sum is built in scratch, because a later part may be the same memory as the sum.
    if (accumulate) std::copy_n(sum + begin, size, scratch.data());
    sum_block<Acc, Part>(scratch.data(), accumulate, parts, begin, size);
    std::copy_n(scratch.data(), size, sum + begin);
  }
}

template <typename T>
T extreme(T a, T b, bool maximum) {
  if constexpr (std::is_same_v<T, bfloat16>) {
    const auto x = static_cast<float>(a), y = static_cast<float>(b);
    return (maximum ? y > x : y < x) || std::isnan(y) ? b : a;
  } else if constexpr (std::is_floating_point_v<T>) {
    return (maximum ? b > a : b < a) || std::isnan(b) ? b : a;
  } else {
    return (maximum ? b > a : b < a) ? b : a;
  }
}

template <typename T>
void ordered_extreme_loop(T* out, std::span<const void* const> parts, std::int64_t count, bool maximum) {
  std::array<T, kBlock> scratch;  // a later part may be the same memory as out
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t size = std::min(kBlock, count - begin);
    std::copy_n(static_cast<const T*>(parts[0]) + begin, size, scratch.data());
    for (std::size_t p = 1; p < parts.size(); ++p) {
      const T* part = static_cast<const T*>(parts[p]) + begin;
      for (std::int64_t i = 0; i < size; ++i) scratch[i] = extreme(scratch[i], part[i], maximum);
    }
    std::copy_n(scratch.data(), size, out + begin);
  }
}

template <typename Word>
void copy_narrow(const void* source, std::int64_t source_stride, void* target, std::int64_t target_stride,
                 std::int64_t rows, std::int64_t cols) {
  const auto* from = static_cast<const Word*>(source);
  auto* to = static_cast<Word*>(target);
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t col = 0; col < cols; ++col) to[row * target_stride + col] = from[row * source_stride + col];
}

}  // namespace

void copy_matrix(const void* source, std::int64_t source_stride, void* target, std::int64_t target_stride,
                 std::int64_t rows, std::int64_t cols, std::size_t element_bytes) {
  if (rows <= 0 || cols <= 0) return;
  const std::size_t row_bytes = static_cast<std::size_t>(cols) * element_bytes;
  if (rows == 1 || (source_stride == cols && target_stride == cols)) {
    std::memcpy(target, source, row_bytes * static_cast<std::size_t>(rows));
    return;
  }
  constexpr std::size_t narrow = 64;  // row length in bytes below which a call of memcpy takes longer than the copy
  if (row_bytes <= narrow) {
    switch (element_bytes) {
      case 2:
        return copy_narrow<std::uint16_t>(source, source_stride, target, target_stride, rows, cols);
      case 4:
        return copy_narrow<std::uint32_t>(source, source_stride, target, target_stride, rows, cols);
      case 8:
        return copy_narrow<std::uint64_t>(source, source_stride, target, target_stride, rows, cols);
      default:
        break;
    }
  }
  const auto* from = static_cast<const std::byte*>(source);
  auto* to = static_cast<std::byte*>(target);
  for (std::int64_t row = 0; row < rows; ++row)
    std::memcpy(to + static_cast<std::size_t>(row * target_stride) * element_bytes,
                from + static_cast<std::size_t>(row * source_stride) * element_bytes, row_bytes);
}

void cast(const void* source, DType from, void* target, DType to, std::int64_t count) {
  dispatch_floating(from, "cast from", [&](auto source_type) {
    dispatch_floating(to, "cast to", [&](auto target_type) {
      using From = decltype(source_type);
      using To = decltype(target_type);
      if constexpr (std::is_same_v<From, To>) {
        if (source != target && count > 0) std::memcpy(target, source, static_cast<std::size_t>(count) * sizeof(To));
      } else {
        cast_loop(static_cast<const From*>(source), static_cast<To*>(target), count);
      }
    });
  });
}

void ordered_sum(void* sum, DType accumulator, bool accumulate, std::span<const void* const> parts, DType type,
                 std::int64_t count) {
  TESSERA_CHECK(accumulator == DType::fp32 || accumulator == DType::fp64,
                "ordered_sum: expected an accumulator of fp32 or fp64, got {}", name_of(accumulator));
  TESSERA_CHECK(!parts.empty() || accumulate,
                "ordered_sum: expected at least one part, or accumulate = true, got no parts");
  dispatch_floating(type, "ordered_sum", [&](auto part) {
    using Part = decltype(part);
    if (accumulator == DType::fp32)
      ordered_sum_loop<float, Part>(static_cast<float*>(sum), accumulate, parts, count);
    else
      ordered_sum_loop<double, Part>(static_cast<double*>(sum), accumulate, parts, count);
  });
}

void ordered_sum_bfloat16(bfloat16* out, std::span<const void* const> parts, std::int64_t count) {
  TESSERA_CHECK(!parts.empty(), "ordered_sum_bfloat16: expected at least one part, got 0");
  std::array<float, kBlock> scratch;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t size = std::min(kBlock, count - begin);
    if (parts.size() <= kPartsAtOnce) {
      add_parts<float, false>(out + begin, shifted<bfloat16>(parts, begin), parts.size(), size);
    } else {
      sum_block<float, bfloat16>(scratch.data(), false, parts, begin, size);
      cast_loop(scratch.data(), out + begin, size);
    }
  }
}

void ordered_extreme(void* out, std::span<const void* const> parts, DType type, std::int64_t count, bool maximum) {
  TESSERA_CHECK(!parts.empty(), "ordered_extreme: expected at least one part, got 0");
  switch (type) {
    case DType::u8:
      return ordered_extreme_loop(static_cast<std::uint8_t*>(out), parts, count, maximum);
    case DType::i32:
      return ordered_extreme_loop(static_cast<std::int32_t*>(out), parts, count, maximum);
    case DType::i64:
      return ordered_extreme_loop(static_cast<std::int64_t*>(out), parts, count, maximum);
    case DType::bf16:
      return ordered_extreme_loop(static_cast<bfloat16*>(out), parts, count, maximum);
    case DType::fp32:
      return ordered_extreme_loop(static_cast<float*>(out), parts, count, maximum);
    case DType::fp64:
      return ordered_extreme_loop(static_cast<double*>(out), parts, count, maximum);
  }
}

}  // namespace tessera::quant
