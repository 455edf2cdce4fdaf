// A part of an embedding table: row r stands for the r-th id of `part`. Errors: a part with another number of rows.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "tessera/ops/id_ranges.h"

namespace tessera::ops {

// tokens: [n] int64 -> [n, hidden]; zero rows for tokens outside the part.
at::Tensor embedding_forward(const at::Tensor& tokens, const at::Tensor& weight, const IdRanges& part);
// dweight [local vocabulary, hidden], accumulator type: rows added in token order; zeroed first unless `accumulate`.
void embedding_backward(const at::Tensor& dy, const at::Tensor& tokens, at::Tensor& dweight, const IdRanges& part,
                        bool accumulate);

}  // namespace tessera::ops
