#include "tessera/ops/gemm/gemm.h"

#include <ATen/ops/mm.h>

#include "tessera/base/error.h"
#include "tessera/ops/aten_types.h"
#include "tessera/ops/gemm/gemm_device.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {
namespace {

// CPU: the alignment of ATen's own memory, which the libraries require for reproducible results.
constexpr std::uintptr_t kCpuAlignment = 64, kCudaAlignment = 256;

bool is_aligned(const at::Tensor& tensor) {
  return reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()) %
             (on_cuda(tensor) ? kCudaAlignment : kCpuAlignment) ==
         0;
}

// Returns the operand in the form that is multiplied: row-major and aligned. On a CPU the operand has the accumulator
// type. bf16 widens to fp32 exactly, so products are exact, and sums are fp32 on every CPU. The CPU's bf16 path differs
// between instruction sets and is slower on most.
at::Tensor operand(const at::Tensor& tensor, const std::string& what) {
  at::Tensor result = dense(tensor, 2, what);
  if (is_dry(result)) return result;
  if (!on_cuda(result)) result = rounded_to(result, accumulator_type(result.scalar_type()));
  return is_aligned(result) ? result : result.clone();
}

struct GemmOperands {
  at::Tensor left, right;
};
GemmOperands operands(const at::Tensor& left, const at::Tensor& right, const std::string& product,
                      const char* left_name, const char* right_name) {
  TESSERA_CHECK(left.defined() && right.defined(), "{}: undefined tensor", product);
  TESSERA_CHECK(left.scalar_type() == right.scalar_type(), "{}: operands of types {} and {}, expected one type",
                product, c10::toString(left.scalar_type()), c10::toString(right.scalar_type()));
  require_one_device({left, right}, product);
  return {operand(left, product + " " + left_name), operand(right, product + " " + right_name)};
}

// Reports a product in a dry run, in bf16 or in the model's type.
at::Tensor dry_product(const char* name, const at::Tensor& operand, const ProductSizes& extents, at::ScalarType type) {
  report(product_work(name, extents, to_dtype(operand.scalar_type()), to_dtype(type)));
  return make({extents.rows, extents.cols}, type, operand.device());
}

// GPU: writes left times right to `result`. Each operand may be transposed.
void multiply(const GemmOperands& it, bool left_transposed, bool right_transposed, at::Tensor& result) {
  const std::int64_t inner = it.left.size(left_transposed ? 0 : 1);
  if (inner == 0) {
    result.zero_();
    return;
  }
  const at::Tensor scratch = make({kProductScratch}, at::kByte, result.device());
  cuda_only<cuda::multiply>({.rows = result.size(0),
                             .cols = result.size(1),
                             .inner = inner,
                             .type = to_dtype(it.left.scalar_type()),
                             .result_type = to_dtype(result.scalar_type()),
                             .left = it.left.const_data_ptr(),
                             .left_transposed = left_transposed,
                             .right = it.right.const_data_ptr(),
                             .right_transposed = right_transposed,
                             .result = result.mutable_data_ptr()},
                            scratch.mutable_data_ptr(), stream_of(result), /*candidate=*/-1);
}
at::Tensor product(const GemmOperands& it, bool left_transposed, bool right_transposed, at::ScalarType type) {
  at::Tensor result =
      make({it.left.size(left_transposed ? 1 : 0), it.right.size(right_transposed ? 0 : 1)}, type, it.left.device());
  multiply(it, left_transposed, right_transposed, result);
  return result;
}

// Returns true if a product of operands of the result's type can write to `result` without a copy.
bool writes_directly(const at::Tensor& result) {
  return on_cuda(result) && is_aligned(result);
}

// result = left^T right
void transposed_product(const GemmOperands& it, at::Tensor& result) {
  if (on_cuda(result))
    multiply(it, true, false, result);
  else
    at::mm_out(result, it.left.t(), it.right);
}

}  // namespace

at::Tensor gemm_fprop(const at::Tensor& x, const at::Tensor& w) {
  const GemmOperands it = operands(x, w, "gemm_fprop", "x", "w");
  TESSERA_CHECK(it.left.size(1) == it.right.size(1), "gemm_fprop: x has {} features, expected {} as in w",
                it.left.size(1), it.right.size(1));
  if (is_dry(x))
    return dry_product("fprop", x, {.rows = x.size(0), .cols = w.size(0), .inner = x.size(1)}, x.scalar_type());
  if (on_cuda(x)) return product(it, false, true, x.scalar_type());
  return rounded_to(at::mm(it.left, it.right.t()), x.scalar_type());
}

at::Tensor gemm_dgrad(const at::Tensor& dy, const at::Tensor& w) {
  const GemmOperands it = operands(dy, w, "gemm_dgrad", "dy", "w");
  TESSERA_CHECK(it.left.size(1) == it.right.size(0), "gemm_dgrad: dy has {} features, expected {} as in w",
                it.left.size(1), it.right.size(0));
  if (is_dry(dy))
    return dry_product("dgrad", dy,
                       {.rows = dy.size(0), .cols = w.size(1), .inner = dy.size(1), .call = ProductCall::dgrad},
                       dy.scalar_type());
  if (on_cuda(dy)) return product(it, false, false, dy.scalar_type());
  return rounded_to(at::mm(it.left, it.right), dy.scalar_type());
}

void gemm_fprop_to(const at::Tensor& x, const at::Tensor& w, at::Tensor& y) {
  require_writable(y, {x.size(0), w.size(0)}, x.scalar_type(), "gemm_fprop_to y");
  require_one_device({x, y}, "gemm_fprop_to");
  if (!writes_directly(y)) {
    y.copy_(gemm_fprop(x, w));
    return;
  }
  const GemmOperands it = operands(x, w, "gemm_fprop_to", "x", "w");
  TESSERA_CHECK(it.left.size(1) == it.right.size(1), "gemm_fprop_to: x has {} features, expected {} as in w",
                it.left.size(1), it.right.size(1));
  multiply(it, false, true, y);
}

void gemm_dgrad_to(const at::Tensor& dy, const at::Tensor& w, at::Tensor& dx) {
  require_writable(dx, {dy.size(0), w.size(1)}, dy.scalar_type(), "gemm_dgrad_to dx");
  require_one_device({dy, dx}, "gemm_dgrad_to");
  if (!writes_directly(dx)) {
    dx.copy_(gemm_dgrad(dy, w));
    return;
  }
  const GemmOperands it = operands(dy, w, "gemm_dgrad_to", "dy", "w");
  TESSERA_CHECK(it.left.size(1) == it.right.size(0), "gemm_dgrad_to: dy has {} features, expected {} as in w",
                it.left.size(1), it.right.size(0));
  multiply(it, false, false, dx);
}

void gemm_wgrad(const at::Tensor& dy, const at::Tensor& x, at::Tensor& dw, bool accumulate) {
  const GemmOperands it = operands(dy, x, "gemm_wgrad", "dy", "x");
  const at::ScalarType type = accumulator_type(dy.scalar_type());
  TESSERA_CHECK(it.left.size(0) == it.right.size(0),
                "gemm_wgrad: dy has {} tokens and x has {}, expected equal numbers", it.left.size(0), it.right.size(0));
  const std::int64_t shape[] = {it.left.size(1), it.right.size(1)};
  const bool is_rounded = !accumulate && dw.defined() && at::isFloatingType(dw.scalar_type());
  require_writable(dw, shape, is_rounded ? dw.scalar_type() : type, "gemm_wgrad dw");
  require_one_device({dy, dw}, "gemm_wgrad");
  if (is_dry(dy)) {
    dry_product(
        "wgrad", dy,
        {.rows = shape[0], .cols = shape[1], .inner = dy.size(0), .call = ProductCall::wgrad, .accumulate = accumulate},
        dw.scalar_type());
    return;
  }
  // The GPU library can round to the type of the inputs.
  const bool supports_type = dw.scalar_type() == type || (on_cuda(dy) && dw.scalar_type() == dy.scalar_type());
  if (!accumulate && is_aligned(dw) && supports_type) return transposed_product(it, dw);
  at::Tensor alone = make(shape, type, dw.device());
  transposed_product(it, alone);
  if (accumulate)
    add_to(dw, alone);
  else
    dw.copy_(rounded_to(alone, dw.scalar_type()));
}

}  // namespace tessera::ops
