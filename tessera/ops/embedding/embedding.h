// Lookup in a shard of an embedding table. Row r of the shard is the r-th id of `part`. Throws Error if the shard and
// `part` have different numbers of rows.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "tessera/ops/id_ranges.h"

namespace tessera::ops {

// `tokens` is [n] int64. Returns [n, hidden]. The row of a token is zero if its id is not in `part`.
at::Tensor embedding_forward(const at::Tensor& tokens, const at::Tensor& weight, const IdRanges& part);
// Adds the rows of dy to `dweight` [local vocabulary, hidden] (accumulator type) in token order. `dweight` is zeroed
// first unless `accumulate` is true.
void embedding_backward(const at::Tensor& dy, const at::Tensor& tokens, at::Tensor& dweight, const IdRanges& part,
                        bool accumulate);

}  // namespace tessera::ops
