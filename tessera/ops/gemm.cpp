#include "tessera/ops/gemm.h"

#include <ATen/ops/mm.h>

#include "tessera/base/error.h"
#include "tessera/ops/cast.h"
#include "tessera/ops/convert.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {
namespace {

constexpr std::uintptr_t kCpuAlignment = 64;  // of ATen's own memory; what the CPU libraries' reproducibility asks for

bool is_aligned(const at::Tensor& tensor) {
  return reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()) % kCpuAlignment == 0;
}

// The operand as the library multiplies it: row-major, aligned, in the accumulator type. bf16 widens to fp32 exactly,
// so the products are exact, sums are fp32 on every CPU (its bf16 path differs between instruction sets and is slower
// on most).
at::Tensor operand(const at::Tensor& tensor, at::ScalarType type, std::string_view what) {
  at::Tensor result = rounded_to(dense(tensor, 2, what), type);
  return is_aligned(result) ? result : result.clone();
}

void require_same_type(const at::Tensor& a, const at::Tensor& b, std::string_view what) {
  TESSERA_CHECK(a.scalar_type() == b.scalar_type(), "{}: operands of types {} and {}, expected one type", what,
                c10::toString(a.scalar_type()), c10::toString(b.scalar_type()));
}

}  // namespace

at::Tensor gemm_fprop(const at::Tensor& x, const at::Tensor& w) {
  require_same_type(x, w, "gemm_fprop");
  const at::ScalarType type = accumulator_type(x.scalar_type());
  const at::Tensor left = operand(x, type, "gemm_fprop x");
  const at::Tensor right = operand(w, type, "gemm_fprop w");
  TESSERA_CHECK(left.size(1) == right.size(1), "gemm_fprop: x has {} features, w takes {}", left.size(1),
                right.size(1));
  return rounded_to(at::mm(left, right.t()), x.scalar_type());
}

at::Tensor gemm_dgrad(const at::Tensor& dy, const at::Tensor& w) {
  require_same_type(dy, w, "gemm_dgrad");
  const at::ScalarType type = accumulator_type(dy.scalar_type());
  const at::Tensor left = operand(dy, type, "gemm_dgrad dy");
  const at::Tensor right = operand(w, type, "gemm_dgrad w");
  TESSERA_CHECK(left.size(1) == right.size(0), "gemm_dgrad: dy has {} features, w gives {}", left.size(1),
                right.size(0));
  return rounded_to(at::mm(left, right), dy.scalar_type());
}

void gemm_wgrad(const at::Tensor& dy, const at::Tensor& x, at::Tensor& dw, bool accumulate) {
  require_same_type(dy, x, "gemm_wgrad");
  const at::ScalarType type = accumulator_type(dy.scalar_type());
  const at::Tensor left = operand(dy, type, "gemm_wgrad dy");
  const at::Tensor right = operand(x, type, "gemm_wgrad x");
  TESSERA_CHECK(left.size(0) == right.size(0), "gemm_wgrad: dy has {} tokens, x {}", left.size(0), right.size(0));
  require_writable(dw, {left.size(1), right.size(1)}, type, "gemm_wgrad dw");
  if (!accumulate && is_aligned(dw)) {
    at::mm_out(dw, left.t(), right);
    return;
  }
  const at::Tensor product = at::mm(left.t(), right);
  if (accumulate)
    add(dw.mutable_data_ptr(), product.const_data_ptr(), to_dtype(type), dw.numel());
  else
    dw.copy_(product);
}

}  // namespace tessera::ops
