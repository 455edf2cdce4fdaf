#include "tessera/ops/embedding/embedding.h"

#include <cstring>

#include "tessera/base/error.h"
#include "tessera/ops/aten_types.h"
#include "tessera/ops/embedding/embedding_kernels.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {
namespace {

void require_rows(const IdRanges& part, std::int64_t rows, const char* what) {
  TESSERA_CHECK(part.rows() == rows, "{}: {} rows, expected {}, the number of ids in this part of the vocabulary", what,
                rows, part.rows());
}

void backward_on_cuda(const EmbeddingArguments& arguments, const at::Tensor& dweight, bool accumulate) {
  at::Tensor scratch = make({cuda_only<cuda::embedding_backward_scratch>(arguments)}, at::kByte, dweight.device());
  cuda_only<cuda::embedding_backward>(arguments, {.scratch = scratch.mutable_data_ptr(), .accumulate = accumulate},
                                      stream_of(dweight));
}

}  // namespace

at::Tensor embedding_forward(const at::Tensor& tokens, const at::Tensor& weight, const IdRanges& part) {
  require_one_device({tokens, weight}, "embedding_forward");
  const at::Tensor table = dense(weight, 2, "embedding weight");
  accumulator_type(table.scalar_type());
  require_rows(part, table.size(0), "embedding weight");
  const at::Tensor given = dense(tokens, 1, "embedding tokens");
  const at::Tensor ids = dense_like(given, given.sizes(), at::kLong, "embedding tokens");
  at::Tensor y = make({ids.size(0), table.size(1)}, table.scalar_type(), table.device());
  run_kernel(memory_work("lookup", 2 * bytes_of({y})), table, cpu::embedding_forward,
             cuda_only<cuda::embedding_forward>,
             {.type = to_dtype(table.scalar_type()),
              .tokens = ids.size(0),
              .hidden = table.size(1),
              .part = part,
              .ids = ids_of(ids),
              .rows = table.const_data_ptr(),
              .result = y.mutable_data_ptr()});
  return y;
}

void embedding_backward(const at::Tensor& dy, const at::Tensor& tokens, at::Tensor& dweight, const IdRanges& part,
                        bool accumulate) {
  require_one_device({dy, tokens, dweight}, "embedding_backward");
  const at::Tensor gradient = dense(dy, 2, "embedding dy");
  const at::Tensor ids = dense_like(tokens, {gradient.size(0)}, at::kLong, "embedding tokens");
  const std::int64_t vocabulary = dense(dweight, 2, "embedding dweight").size(0);
  require_writable(dweight, {vocabulary, gradient.size(1)}, accumulator_type(gradient.scalar_type()),
                   "embedding dweight");
  require_rows(part, vocabulary, "embedding dweight");
  const EmbeddingArguments arguments{.type = to_dtype(gradient.scalar_type()),
                                     .tokens = ids.size(0),
                                     .hidden = gradient.size(1),
                                     .part = part,
                                     .ids = ids_of(ids),
                                     .rows = gradient.const_data_ptr(),
                                     .result = dweight.mutable_data_ptr()};
  if (is_dry(gradient)) {
    // The kernel reads and writes the sums.
    const at::Tensor sums = make(gradient.sizes(), dweight.scalar_type(), gradient.device());
    return report(memory_work("lookup backward", bytes_of({dweight, gradient, sums, sums})));
  }
  if (on_cuda(gradient)) return backward_on_cuda(arguments, dweight, accumulate);
  if (!accumulate && dweight.numel() > 0) std::memset(arguments.result, 0, dweight.nbytes());
  cpu::embedding_backward(arguments);
}

}  // namespace tessera::ops
