#include "tessera/comm/reduce.h"

#include "tessera/base/error.h"
#include "tessera/quant/bfloat16.h"

namespace tessera::comm {

using quant::DType;

void check_reducible(DType type, ReduceOp op, const char* where) {
  if (op == ReduceOp::sum && type == DType::u8)
    throw Error("{}: u8 has no sum; expected i32, i64, bf16, fp32 or fp64", where);
}

void reduce(const quant::Kernels& kernels, void* out, std::span<const void* const> parts, DType type, ReduceOp op,
            std::int64_t count) {
  check_reducible(type, op, "reduce");
  if (op != ReduceOp::sum) return kernels.ordered_extreme(out, parts, type, count, op == ReduceOp::max);
  switch (type) {
    case DType::i32:
    case DType::i64:
      return kernels.ordered_sum_integers(out, parts, type, count);
    case DType::bf16:
      return kernels.ordered_sum_bfloat16(static_cast<quant::bfloat16*>(out), parts, count);
    default:
      return kernels.ordered_sum(out, type, false, parts, type, count);
  }
}

void reduce(void* out, std::span<const void* const> parts, DType type, ReduceOp op, std::int64_t count) {
  reduce(quant::host_kernels(), out, parts, type, op, count);
}

}  // namespace tessera::comm
