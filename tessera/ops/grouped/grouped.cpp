#include "tessera/ops/grouped/grouped.h"

#include "tessera/base/error.h"
#include "tessera/ops/aten_types.h"
#include "tessera/ops/gemm/gemm.h"
#include "tessera/ops/grouped/grouped_device.h"
#include "tessera/ops/tensor.h"
#include "tessera/ops/work.h"

namespace tessera::ops {
namespace {

// Returns the rows of one expert's matrix. Throws Error unless `w` has the rows of a matrix for each local expert.
std::int64_t height_of(const at::Tensor& w, const Selection& selection, const char* what) {
  const std::int64_t local = selection.local;
  TESSERA_CHECK(local == 0 ? w.size(0) == 0 : w.size(0) % local == 0, "{}: {} rows for {} experts", what, w.size(0),
                local);
  return local == 0 ? 0 : w.size(0) / local;
}

// Returns the gradient of outputs as a row-major tensor. Without local experts the width of an output is unknown.
at::Tensor dense_gradient(const at::Tensor& dy, const Selection& selection, std::int64_t height, at::ScalarType type,
                          const char* what) {
  const at::Tensor rows = dense(dy, 2, what);
  return dense_like(rows, {selection.room, selection.local == 0 ? rows.size(1) : height}, type, what);
}

// Reports the products of a dry run as one product with the expected number of rows.
void report_products(const char* name, ProductSizes sizes, const at::Tensor& operand, at::ScalarType result) {
  report(product_work(name, sizes, to_dtype(operand.scalar_type()), to_dtype(result)));
}

// For each expert and block, calls product(rows of the expert in the block, the expert's weight), which writes into
// `result`.
template <typename Product>
void each_product(const at::Tensor& rows, const at::Tensor& w, std::int64_t height, const Selection& selection,
                  at::Tensor& result, Product product) {
  for (std::int64_t expert = 0; expert < selection.local; ++expert)
    for (std::int64_t block = 0; block < selection.blocks; ++block) {
      const auto [begin, end] = selection.rows_of(expert, block);
      if (begin == end) continue;
      result.narrow(0, begin, end - begin)
          .copy_(product(rows.narrow(0, begin, end - begin), w.narrow(0, expert * height, height)));
    }
}

void device_wgrad(const at::Tensor& dy, const at::Tensor& x, const Selection& selection, std::int64_t height,
                  at::Tensor& dw, bool accumulate) {
  const at::ScalarType type = dy.scalar_type();
  TESSERA_CHECK(type != at::kBFloat16 || dw.scalar_type() == type,
                "grouped_wgrad: a gradient of {} for inputs of bf16, expected bf16 on a GPU",
                c10::toString(dw.scalar_type()));
  const std::int64_t shape[] = {selection.local, height, x.size(1)};
  if (!accumulate && dw.scalar_type() == type) {
    at::Tensor result = dw.view(shape);
    return cuda_only<cuda::grouped_wgrad>(dy, x, selection, result);
  }
  at::Tensor alone = make(shape, type, dw.device());
  cuda_only<cuda::grouped_wgrad>(dy, x, selection, alone);
  if (accumulate)
    add_to(dw, alone);
  else
    dw.copy_(rounded_to(alone, dw.scalar_type()).view(dw.sizes()));
}

}  // namespace

at::Tensor grouped_fprop(const at::Tensor& x, const at::Tensor& w, const Selection& selection) {
  const at::Tensor weight = dense(w, 2, "grouped_fprop w");
  const std::int64_t height = height_of(weight, selection, "grouped_fprop w"), in = weight.size(1);
  const at::Tensor rows = dense_like(x, {selection.room, in}, weight.scalar_type(), "grouped_fprop x");
  at::Tensor y = make({selection.room, height}, rows.scalar_type(), rows.device());
  if (is_dry(rows)) {
    report_products("experts fprop", {.rows = selection.expected, .cols = height, .inner = in}, rows,
                    rows.scalar_type());
    return y;
  }
  if (on_cuda(rows)) {
    cuda_only<cuda::grouped_fprop>(rows, weight.view({selection.local, height, in}), selection, y);
    return y;
  }
  each_product(rows, weight, height, selection, y,
               [](const at::Tensor& some, const at::Tensor& own) { return gemm_fprop(some, own); });
  return y;
}

at::Tensor grouped_dgrad(const at::Tensor& dy, const at::Tensor& w, const Selection& selection) {
  const at::Tensor weight = dense(w, 2, "grouped_dgrad w");
  const std::int64_t height = height_of(weight, selection, "grouped_dgrad w"), in = weight.size(1);
  const at::Tensor rows = dense_gradient(dy, selection, height, weight.scalar_type(), "grouped_dgrad dy");
  at::Tensor dx = make({selection.room, in}, rows.scalar_type(), rows.device());
  if (is_dry(rows)) {
    report_products("experts dgrad",
                    {.rows = selection.expected, .cols = in, .inner = height, .call = ProductCall::dgrad}, rows,
                    rows.scalar_type());
    return dx;
  }
  if (on_cuda(rows)) {
    cuda_only<cuda::grouped_dgrad>(rows, weight.view({selection.local, height, in}), selection, dx);
    return dx;
  }
  each_product(rows, weight, height, selection, dx,
               [](const at::Tensor& some, const at::Tensor& own) { return gemm_dgrad(some, own); });
  return dx;
}

void grouped_wgrad(const at::Tensor& dy, const at::Tensor& x, const Selection& selection, at::Tensor& dw,
                   bool accumulate) {
  const at::Tensor inputs = dense(x, 2, "grouped_wgrad x");
  const std::int64_t in = inputs.size(1);
  TESSERA_CHECK(inputs.size(0) == selection.room, "grouped_wgrad: {} rows of x, expected {}", inputs.size(0),
                selection.room);
  TESSERA_CHECK(dw.defined() && dw.dim() == 2, "grouped_wgrad dw: expected a matrix");
  const std::int64_t height = height_of(dw, selection, "grouped_wgrad dw");
  const at::ScalarType type = inputs.scalar_type(), sums = accumulator_type(type);
  const at::Tensor gradient = dense_gradient(dy, selection, height, type, "grouped_wgrad dy");
  const bool is_rounded = !accumulate && at::isFloatingType(dw.scalar_type());
  require_writable(dw, {dw.size(0), in}, is_rounded ? dw.scalar_type() : sums, "grouped_wgrad dw");
  if (is_dry(gradient)) {
    report_products(
        "experts wgrad",
        {.rows = height, .cols = in, .inner = selection.expected, .call = ProductCall::wgrad, .accumulate = accumulate},
        gradient, dw.scalar_type());
    return;
  }
  if (on_cuda(gradient)) return device_wgrad(gradient, inputs, selection, height, dw, accumulate);
  for (std::int64_t expert = 0; expert < selection.local; ++expert) {
    const auto [begin, end] = selection.rows_of(expert);
    at::Tensor own = dw.narrow(0, expert * height, height);
    if (begin < end)
      gemm_wgrad(gradient.narrow(0, begin, end - begin), inputs.narrow(0, begin, end - begin), own, accumulate);
    else if (!accumulate)
      own.zero_();
  }
}

}  // namespace tessera::ops
