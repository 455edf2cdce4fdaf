#include "tessera/ops/cross_entropy/cross_entropy.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/ops/arithmetic.h"
#include "tessera/ops/aten_types.h"
#include "tessera/ops/cross_entropy/cross_entropy_kernels.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {
namespace {

CrossEntropyShape shape_of(const at::Tensor& logits) {
  return {.type = to_dtype(logits.scalar_type()), .tokens = logits.size(0), .vocabulary = logits.size(1), .part = {}};
}

CrossEntropyShape shape_of(const at::Tensor& logits, const IdRanges& part) {
  CrossEntropyShape shape = shape_of(logits);
  TESSERA_CHECK(part.rows() == shape.vocabulary,
                "cross_entropy logits: {} columns, expected {}, the number of ids in this part of the vocabulary",
                shape.vocabulary, part.rows());
  shape.part = part;
  return shape;
}

at::Tensor checked_targets(const at::Tensor& targets, std::int64_t tokens) {
  at::Tensor result = dense_like(targets, {tokens}, at::kLong, "cross_entropy targets");
  if (!result.is_cpu()) return result;  // on CUDA, the kernel checks the targets
  const auto* values = result.const_data_ptr<std::int64_t>();
  for (std::int64_t token = 0; token < tokens; ++token)
    TESSERA_CHECK(values[token] >= -1, "cross_entropy: target {} of token {}: expected an id, or -1 (masked)",
                  values[token], token);
  return result;
}

}  // namespace

at::Tensor cross_entropy_maximum(const at::Tensor& logits) {
  const at::Tensor input = dense(logits, 2, "cross_entropy logits");
  at::Tensor maximum = make({input.size(0)}, accumulator_type(input.scalar_type()), input.device());
  run_kernel(memory_work("loss", bytes_of({input})), input, cpu::cross_entropy_maximum,
             cuda_only<cuda::cross_entropy_maximum>, shape_of(input),
             {.logits = input.const_data_ptr(), .maximum = maximum.mutable_data_ptr()});
  return maximum;
}

at::Tensor cross_entropy_sums(const at::Tensor& logits, const at::Tensor& maximum, const at::Tensor& targets,
                              const IdRanges& part) {
  require_one_device({logits, maximum, targets}, "cross_entropy_sums");
  const at::Tensor input = dense(logits, 2, "cross_entropy logits");
  const at::ScalarType type = accumulator_type(input.scalar_type());
  const at::Tensor largest = dense_like(maximum, {input.size(0)}, type, "cross_entropy maximum");
  const at::Tensor ids = checked_targets(targets, input.size(0));
  at::Tensor sums = make({2, input.size(0)}, type, input.device());
  run_kernel(memory_work("loss", bytes_of({input})), input, cpu::cross_entropy_sums,
             cuda_only<cuda::cross_entropy_sums>, shape_of(input, part),
             {.logits = input.const_data_ptr(),
              .maximum = largest.const_data_ptr(),
              .targets = ids_of(ids),
              .sums = sums.mutable_data_ptr()});
  return sums;
}

at::Tensor cross_entropy_finish(at::Tensor& logits, const at::Tensor& maximum, const at::Tensor& sums,
                                const at::Tensor& targets, const IdRanges& part, double scale) {
  require_one_device({logits, maximum, sums, targets}, "cross_entropy_finish");
  const std::int64_t tokens = dense(logits, 2, "cross_entropy logits").size(0);
  const at::ScalarType type = accumulator_type(logits.scalar_type());
  require_writable(logits, logits.sizes(), logits.scalar_type(), "cross_entropy logits");
  const at::Tensor largest = dense_like(maximum, {tokens}, type, "cross_entropy maximum");
  const at::Tensor reduced = dense_like(sums, {2, tokens}, type, "cross_entropy sums");
  const at::Tensor ids = checked_targets(targets, tokens);
  at::Tensor losses = make({tokens}, type, logits.device());
  const at::Tensor gradient = scale != 0 ? logits : at::Tensor();
  run_kernel(memory_work("loss", bytes_of({logits, gradient})), logits, cpu::cross_entropy_finish,
             cuda_only<cuda::cross_entropy_finish>, shape_of(logits, part),
             {.maximum = largest.const_data_ptr(),
              .sums = reduced.const_data_ptr(),
              .targets = ids_of(ids),
              .scale = scale,
              .logits = logits.mutable_data_ptr(),
              .losses = losses.mutable_data_ptr()});
  return losses;
}

double sum_in_order(const at::Tensor& losses) {
  constexpr std::int64_t chunk_size = 1024;
  const at::Tensor values = dense(losses, 1, "losses");
  if (on_cuda(values)) return sum_on_device(values).item<double>();
  double result = 0;
  dispatch_accumulator(to_dtype(values.scalar_type()), [&](auto element) {
    using A = decltype(element);
    const A* data = values.const_data_ptr<A>();
    A total = 0;
    for (std::int64_t start = 0; start < values.numel(); start += chunk_size) {
      A chunk = 0;
      for (std::int64_t i = start; i < std::min(start + chunk_size, values.numel()); ++i) chunk += data[i];
      total += chunk;
    }
    result = total;
  });
  return result;
}

at::Tensor sum_on_device(const at::Tensor& losses) {
  const at::Tensor values = dense(losses, 1, "losses");
  at::Tensor sum = make({}, at::kDouble, values.device());
  if (is_dry(values)) return sum;
  if (!on_cuda(values)) return sum.fill_(sum_in_order(values));
  const at::ScalarType type = values.scalar_type();
  at::Tensor scratch = make({cuda_only<cuda::sum_in_order_scratch>(values.numel())}, type, values.device());
  cuda_only<cuda::sum_in_order>({.type = to_dtype(type),
                                 .count = values.numel(),
                                 .terms = values.const_data_ptr(),
                                 .scratch = scratch.mutable_data_ptr(),
                                 .sum = sum.mutable_data_ptr<double>()},
                                stream_of(values));
  return sum;
}

}  // namespace tessera::ops
