// The local phases of cross-entropy over a vocabulary that is sharded over ranks. Between the phases the caller reduces
// `maximum` (max) and then `sums` (sum) over the group. Logits have the model's type, and arithmetic is fp32 (fp64 for
// fp64). Rows are processed in chunks of a fixed size. The gradient overwrites the logits. A target below -1 is an
// error on the CPU. On CUDA the host does not read targets; the loss and the gradient of such a token become NaN.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "tessera/ops/id_ranges.h"

namespace tessera::ops {

// `logits` is [tokens, local vocabulary]. Returns the maximum of each row, [tokens] in the accumulator type; -inf if
// the local vocabulary is empty.
at::Tensor cross_entropy_maximum(const at::Tensor& logits);
// `targets` is [tokens] int64 with global ids. Local column c is the c-th id of `part`. Returns [2, tokens]: the sum of
// exp(logit - maximum), and the logit of the target if it is local, otherwise 0.
at::Tensor cross_entropy_sums(const at::Tensor& logits, const at::Tensor& maximum, const at::Tensor& targets,
                              const IdRanges& part);
// Returns the losses [tokens]: log(sum) + maximum - target logit, or 0 if the target is -1 (masked). If scale is not 0,
// overwrites the logits with d(scale * sum of losses)/d logits = scale * (softmax - onehot), rounded once. The gradient
// of masked rows is 0.
at::Tensor cross_entropy_finish(at::Tensor& logits, const at::Tensor& maximum, const at::Tensor& sums,
                                const at::Tensor& targets, const IdRanges& part, double scale);
// Returns the sum in token order, in chunks of 1024, computed in fp32 (fp64 for fp64). Synchronizes with a CUDA device.
double sum_in_order(const at::Tensor& losses);
// Returns the same number as an fp64 tensor on the device of the losses, without synchronization.
at::Tensor sum_on_device(const at::Tensor& losses);

}  // namespace tessera::ops
