// The embedding table, sharded by vocabulary rows over tp. Over gtp, either the table is gathered, or the ranks
// exchange only the rows of the microbatch's tokens (shard/rows/rows.h).
#pragma once
#include <ATen/core/Tensor.h>

#include "tessera/nn/weight.h"
#include "tessera/ops/id_ranges.h"

namespace tessera::nn {

struct VocabEmbedding {
  Weight weight;       // [local vocabulary, hidden]
  ops::IdRanges part;  // the vocabulary ids of the weight's rows; at most one range if the ranks exchange rows
};
// Returns the embeddings of a whole microbatch with autograd: tokens [n] int64 -> [own tokens, hidden]. `early_tokens`:
// see models::Batch. `anchor` is any tensor that requires a gradient. Autograd needs this argument, because token ids
// have no gradient. The gradient of `anchor` stays undefined.
at::Tensor embed(const PassState& pass, const VocabEmbedding& embedding, const at::Tensor& tokens,
                 const at::Tensor& early_tokens, const at::Tensor& anchor);

}  // namespace tessera::nn
