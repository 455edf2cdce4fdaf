// The embedding table cut by vocabulary rows over tp. Over gtp it is gathered, or the rows of the microbatch's tokens
// are exchanged (shard/rows/rows.h).
#pragma once
#include <ATen/core/Tensor.h>

#include "tessera/nn/weight.h"
#include "tessera/ops/id_ranges.h"

namespace tessera::nn {

struct VocabEmbedding {
  Weight weight;       // [local vocabulary, hidden]
  ops::IdRanges part;  // the ids of its rows; one range at most where rows travel by index
};
// tokens: [n] int64, the whole microbatch -> [own tokens, hidden], with autograd. early_tokens: see Batch. `anchor`:
// any tensor that requires a gradient, so that the graph has a root (token ids have none); its gradient stays
// undefined.
at::Tensor embed(Context& context, const VocabEmbedding& embedding, const at::Tensor& tokens,
                 const at::Tensor& early_tokens, const at::Tensor& anchor);

}  // namespace tessera::nn
