#include <ATen/native/cuda/GroupMM.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "tessera/ops/aten_types.h"
#include "tessera/ops/experts/experts_kernels.h"
#include "tessera/ops/grouped/grouped.h"
#include "tessera/ops/grouped/grouped_device.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops::cuda {
namespace {

constexpr std::uintptr_t kRowAlignment = 16;  // bytes

std::int64_t padded(std::int64_t size) {
  return (size + kGroupedMultiple - 1) / kGroupedMultiple * kGroupedMultiple;
}

bool starts_aligned(const at::Tensor& tensor) {
  return reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()) % kRowAlignment == 0;
}

// Returns the operand with its last two dimensions padded with zeros to `rows` and `cols`. If `rows` is 0, pads only
// the last dimension. Returns the operand itself if no padding is needed and the operand is aligned.
at::Tensor extended(const at::Tensor& operand, std::int64_t rows, std::int64_t cols) {
  const std::int64_t last = operand.dim() - 1;
  if (rows == 0) rows = operand.size(last - 1);
  if (operand.size(last) == cols && operand.size(last - 1) == rows && starts_aligned(operand)) return operand;
  std::vector<std::int64_t> shape = operand.sizes().vec();
  const std::int64_t old_rows = operand.size(last - 1), old_cols = operand.size(last);
  shape[static_cast<std::size_t>(last)] = cols, shape[static_cast<std::size_t>(last - 1)] = rows;
  at::Tensor result = at::zeros(shape, operand.options());
  result.narrow(last - 1, 0, old_rows).narrow(last, 0, old_cols).copy_(operand);
  return result;
}

// Computes result = left times right for each group. `result` has the shape [..., rows, cols].
void multiply_groups(const at::Tensor& left, const at::Tensor& right, const Selection& selection, at::Tensor& result,
                     std::int64_t rows, std::int64_t cols) {
  const std::int64_t last = result.dim() - 1;
  const bool is_whole = result.size(last - 1) == rows && result.size(last) == cols && starts_aligned(result);
  std::vector<std::int64_t> shape = result.sizes().vec();
  shape[static_cast<std::size_t>(last)] = cols, shape[static_cast<std::size_t>(last - 1)] = rows;
  at::Tensor out = is_whole ? result : at::empty(shape, result.options());
  at::cuda::detail::bf16bf16_grouped_mm(left, right, selection.ends, std::nullopt, out);
  if (!is_whole) result.copy_(out.narrow(last - 1, 0, result.size(last - 1)).narrow(last, 0, result.size(last)));
}

bool is_empty(const Selection& selection, const at::Tensor& w) {
  return selection.local == 0 || selection.room == 0 || w.numel() == 0;
}

PlainProductArguments plain(GroupedProduct product, const at::Tensor& rows, const at::Tensor& other,
                            const at::Tensor& w, const Selection& selection, at::Tensor& result) {
  return {.product = product,
          .type = to_dtype(rows.scalar_type()),
          .local = selection.local,
          .room = selection.room,
          .out = w.size(1),
          .in = w.size(2),
          .ends = selection.ends.const_data_ptr<std::int32_t>(),
          .rows = rows.const_data_ptr(),
          .other = other.const_data_ptr(),
          .result = result.mutable_data_ptr()};
}

}  // namespace

void grouped_fprop(const at::Tensor& x, const at::Tensor& w, const Selection& selection, at::Tensor& y) {
  if (is_empty(selection, w)) {
    y.zero_();
    return;
  }
  if (x.scalar_type() != at::kBFloat16)
    return plain_product(plain(GroupedProduct::fprop, x, w, w, selection, y), stream_of(x));
  const std::int64_t out = padded(w.size(1)), in = padded(w.size(2));
  multiply_groups(extended(x, 0, in), extended(w, out, in).transpose(1, 2), selection, y, x.size(0), out);
}

void grouped_dgrad(const at::Tensor& dy, const at::Tensor& w, const Selection& selection, at::Tensor& dx) {
  if (is_empty(selection, w)) {
    dx.zero_();
    return;
  }
  if (dy.scalar_type() != at::kBFloat16)
    return plain_product(plain(GroupedProduct::dgrad, dy, w, w, selection, dx), stream_of(dy));
  const std::int64_t out = padded(w.size(1)), in = padded(w.size(2));
  multiply_groups(extended(dy, 0, out), extended(w, out, in), selection, dx, dy.size(0), in);
}

void grouped_wgrad(const at::Tensor& dy, const at::Tensor& x, const Selection& selection, at::Tensor& dw) {
  if (is_empty(selection, dw)) {
    dw.zero_();
    return;
  }
  if (dy.scalar_type() != at::kBFloat16)
    return plain_product(plain(GroupedProduct::wgrad, dy, x, dw, selection, dw), stream_of(dy));
  const std::int64_t out = padded(dw.size(1)), in = padded(dw.size(2));
  multiply_groups(extended(dy, 0, out).t(), extended(x, 0, in), selection, dw, out, in);
}

}  // namespace tessera::ops::cuda
