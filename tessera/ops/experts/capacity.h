// Capacity: the most rows that an expert computes for one block of tokens. Choices beyond it are dropped. CPU only.
#pragma once
#include "tessera/ops/experts/selection.h"

namespace tessera::ops {

// Returns ceil(factor * tokens * k / experts), at least 1. tokens: of a block.
std::int64_t capacity_of(double factor, std::int64_t tokens, std::int64_t k, std::int64_t experts);

// Returns the choices with -1 for each dropped choice of a local expert; see select_rows. An expert keeps, of each
// block, the `capacity` choices with the largest weights, and among equal weights those of the first tokens. A weight
// that is NaN is less than all others. experts: [tokens, k] int32, the choices of `blocks` blocks of equal length.
// weights: [tokens, k], accumulator type. Throws InputError for tensors on a GPU.
at::Tensor within_capacity(const at::Tensor& experts, const at::Tensor& weights, const LocalExperts& local,
                           std::int64_t blocks, std::int64_t capacity);

}  // namespace tessera::ops
