// The capacity of experts: the largest number of rows that an expert computes for one block of tokens. Choices beyond
// the capacity are dropped. The CPU and CUDA drop the same choices.
#pragma once
#include "tessera/ops/router/selection.h"

namespace tessera::ops {

// Returns ceil(factor * tokens * k / experts), at least 1 and at most `tokens`, the number of tokens in a block. A
// quotient that exceeds an integer by a rounding error (relative 1e-12) is not rounded up.
std::int64_t capacity_of(double factor, std::int64_t tokens, std::int64_t k, std::int64_t experts);

// Returns the choices, with -1 for each dropped choice of a local expert (select_rows). In each block, an expert keeps
// the `capacity` choices with the largest weights. Among equal weights, an expert keeps the choices of the first
// tokens. A NaN weight is treated as smaller than all other weights. experts: [tokens, k] int32, the choices of
// `blocks` blocks of equal length. weights: [tokens, k], accumulator type.
at::Tensor within_capacity(const at::Tensor& experts, const at::Tensor& weights, const LocalExperts& local,
                           std::int64_t blocks, std::int64_t capacity);

}  // namespace tessera::ops
