// The local phases of cross-entropy over a vocabulary that is cut over ranks. Between them the caller reduces `maximum`
// (max) and then `sums` (sum) over the group. Logits are in the model's type, arithmetic in fp32 (fp64 for fp64), rows
// in chunks of fixed size; the gradient replaces the logits. A target below -1 is an error on the CPU; on CUDA, where
// the host does not read it, its loss and gradient become NaN.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "tessera/ops/id_ranges.h"

namespace tessera::ops {

// logits: [tokens, local vocabulary]. Returns [tokens] in the accumulator type; -inf where the local vocabulary is
// empty.
at::Tensor cross_entropy_maximum(const at::Tensor& logits);
// targets: [tokens] int64, global ids. Local column c is the c-th id of `part`. Returns [2, tokens]: sum of exp(logit -
// maximum), and logit of the target where it is local, else 0.
at::Tensor cross_entropy_sums(const at::Tensor& logits, const at::Tensor& maximum, const at::Tensor& targets,
                              const IdRanges& part);
// Losses [tokens] = log(sum) + maximum - target logit, 0 where target is -1 (masked). With scale != 0 logits become
// d(scale * sum of losses)/d logits = scale * (softmax - onehot), rounded once; masked rows 0.
at::Tensor cross_entropy_finish(at::Tensor& logits, const at::Tensor& maximum, const at::Tensor& sums,
                                const at::Tensor& targets, const IdRanges& part, double scale);
// Sum in token order by chunks of 1024: fp32 (fp64 for fp64). Waits for a CUDA device.
double sum_in_order(const at::Tensor& losses);
// The same number as a tensor of fp64 on the losses' device; waits for nothing.
at::Tensor sum_on_device(const at::Tensor& losses);

}  // namespace tessera::ops
