// The output layer, sharded by vocabulary rows over tp, and the cross-entropy of its logits. The logits stay internal.
#pragma once
#include <ATen/core/Tensor.h>

#include "tessera/nn/weight.h"
#include "tessera/ops/id_ranges.h"

namespace tessera::nn {

struct VocabOutput {
  Weight weight;       // [local vocabulary, hidden]
  ops::IdRanges part;  // the vocabulary ids of the weight's rows
};
struct Loss {
  // scale * sum, a scalar on the CPU, from which backward starts. Without gradients the value is 0. On a GPU the value
  // is NaN, because the host would have to wait for the true value. The gradient is correct on every device.
  at::Tensor objective;
  // The sum of this microbatch's token losses: an fp64 scalar on the model's device. The token losses are fp32 (fp64 in
  // fp64 runs), added in token order.
  at::Tensor sum;
  // RouterLoss::values; undefined for a model without experts.
  at::Tensor router = {};
};
// hidden: [own tokens, hidden]. targets: [tokens] int64, -1 masked. scale: 1 / tokens of the whole step. With gradients
// enabled, the gradient of the logits replaces the logits in memory and is kept for backward.
Loss output_loss(const PassState& pass, const VocabOutput& output, const at::Tensor& hidden, const at::Tensor& targets,
                 double scale);

}  // namespace tessera::nn
