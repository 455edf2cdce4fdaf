// A slice of an embedding table: rows [vocab_begin, vocab_begin + weight.size(0)) of the vocabulary.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::ops {

// tokens: [n] int64 -> [n, hidden]; zero rows for tokens outside the slice.
at::Tensor embedding_forward(const at::Tensor& tokens, const at::Tensor& weight, std::int64_t vocab_begin);
// dweight [local vocabulary, hidden], accumulator type: rows added in token order; zeroed first unless `accumulate`.
void embedding_backward(const at::Tensor& dy, const at::Tensor& tokens, at::Tensor& dweight, std::int64_t vocab_begin,
                        bool accumulate);

}  // namespace tessera::ops
