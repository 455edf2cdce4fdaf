#include <ATen/native/cuda/ScaledGroupMM.h>
#include <ATen/ops/ones.h>

#include "tessera/ops/grouped/grouped_codes.h"

namespace tessera::ops::cuda {

// libtorch multiplies each result by a scale for its row and a scale for its column. Alpha is the scale of the row.
void multiply_row_codes(const CodesProduct& it, at::Tensor& result) {
  const std::int64_t groups = it.right.size(0), cols = it.right.size(1);
  const at::Tensor ones = at::ones({1, cols}, it.factors.options()).expand({groups, cols});
  at::cuda::detail::f8f8bf16_grouped_mm(it.left.view(at::kFloat8_e4m3fn),
                                        it.right.view(at::kFloat8_e4m3fn).transpose(1, 2), it.factors, ones, it.ends,
                                        std::nullopt, it.fast, result);
}

void multiply_inner_codes(const CodesProduct& it, at::Tensor& result) {
  const at::Tensor ones = at::ones({it.ends.size(0), it.right.size(0)}, it.factors.options());
  at::cuda::detail::f8f8bf16_grouped_mm(it.left.view(at::kFloat8_e4m3fn), it.right.view(at::kFloat8_e4m3fn).t(),
                                        it.factors, ones, it.ends, std::nullopt, it.fast, result);
}

}  // namespace tessera::ops::cuda
