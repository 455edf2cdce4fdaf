#include "tessera/comm/reduce.h"

#include <algorithm>
#include <array>

#include "tessera/base/bfloat16.h"
#include "tessera/base/error.h"
#include "tessera/comm/kernels.h"

namespace tessera::comm {
namespace {

using base::DType;

constexpr std::int64_t kBlock = 2048;  // elements

template <typename Unsigned>
void sum_integers(Unsigned* out, std::span<const void* const> parts, std::int64_t count) {
  std::array<Unsigned, kBlock> sum;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t size = std::min(kBlock, count - begin);
    sum.fill(0);
    for (const void* part : parts) {
      const auto* values = static_cast<const Unsigned*>(part) + begin;
      for (std::int64_t i = 0; i < size; ++i) sum[i] += values[i];
    }
    std::copy_n(sum.data(), size, out + begin);
  }
}

}  // namespace

void check_reducible(DType type, ReduceOp op, const char* where) {
  if (op == ReduceOp::sum && type == DType::u8)
    throw Error("{}: u8 has no sum; expected i32, i64, bf16, fp32 or fp64", where);
}

void reduce(void* out, std::span<const void* const> parts, DType type, ReduceOp op, std::int64_t count) {
  check_reducible(type, op, "reduce");
  if (op != ReduceOp::sum) return ordered_extreme(out, parts, type, count, op == ReduceOp::max);
  switch (type) {
    case DType::i32:
      return sum_integers(static_cast<std::uint32_t*>(out), parts, count);
    case DType::i64:
      return sum_integers(static_cast<std::uint64_t*>(out), parts, count);
    case DType::bf16:
      return ordered_sum_bfloat16(static_cast<base::bfloat16*>(out), parts, count);
    default:
      return ordered_sum(out, type, false, parts, type, count);
  }
}

}  // namespace tessera::comm
