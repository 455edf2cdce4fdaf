// The output layer cut by vocabulary rows over tp, and the cross-entropy of its logits, which never exist outside it.
#pragma once
#include <ATen/core/Tensor.h>

#include "tessera/nn/weight.h"
#include "tessera/ops/id_ranges.h"

namespace tessera::nn {

struct VocabOutput {
  Weight weight;       // [local vocabulary, hidden]
  ops::IdRanges part;  // the ids of its rows
};
struct Loss {
  // scale * sum, a scalar on the CPU: the root of backward. Without gradients its value is 0. On a GPU it is NaN, for
  // which the host would have to wait; its gradient is right.
  at::Tensor objective;
  // Of this microbatch's token losses, fp32 in token order (fp64 for fp64): a scalar in fp64 on the model's device.
  at::Tensor sum;
};
// hidden: [own tokens, hidden]; targets: [tokens] int64, -1 masked. scale: 1 / tokens of the whole step. With gradients
// enabled the logits' gradient takes their place and is kept for backward.
Loss output_loss(Context& context, const VocabOutput& output, const at::Tensor& hidden, const at::Tensor& targets,
                 double scale);

}  // namespace tessera::nn
