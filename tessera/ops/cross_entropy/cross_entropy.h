// Cross-entropy over a vocabulary that is sharded over ranks, in three local phases. After the first phase the caller
// reduces the result over the group with max. After the second phase the caller reduces the result with sum. Logits
// have the model's type. Arithmetic is fp32 (fp64 for fp64). Rows are processed in chunks of a fixed size. The gradient
// overwrites the logits. A target below -1 is an error on the CPU. On CUDA the host does not read targets. The loss and
// the gradient of a token with a target below -1 become NaN.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "tessera/ops/id_ranges.h"

namespace tessera::ops {

// `logits` is [tokens, local vocabulary]. Returns the maximum of each row, [tokens] in the accumulator type; -inf if
// the local vocabulary is empty.
at::Tensor cross_entropy_maximum(const at::Tensor& logits);
// `targets` is [tokens] int64 with global ids. Local column c is the c-th id of `part`. Returns [2, tokens]. Row 0 is
// the sum of exp(logit - maximum). Row 1 is the logit of the target, or 0 if the target is not local.
at::Tensor cross_entropy_sums(const at::Tensor& logits, const at::Tensor& maximum, const at::Tensor& targets,
                              const IdRanges& part);
// Returns the losses [tokens]: log(sum) + maximum - target logit, or 0 if the target is -1 (masked). If scale is not 0,
// overwrites the logits with the gradient of scale * sum of losses, which is scale * (softmax - onehot), rounded once.
// The gradient of a masked row is 0.
at::Tensor cross_entropy_finish(at::Tensor& logits, const at::Tensor& maximum, const at::Tensor& sums,
                                const at::Tensor& targets, const IdRanges& part, double scale);
// Sums the losses in token order, in chunks of 1024, in fp32 (fp64 for fp64). Waits for a CUDA device.
double sum_in_order(const at::Tensor& losses);
// Returns the result of sum_in_order as an fp64 tensor on the device of the losses. Does not wait for the device.
at::Tensor sum_on_device(const at::Tensor& losses);

}  // namespace tessera::ops
