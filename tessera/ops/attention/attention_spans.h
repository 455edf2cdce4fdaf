// The documents of a batch as calls of an attention kernel. Internal to ops.
#pragma once
#include <cstdint>
#include <vector>

#include "tessera/ops/attention/attention.h"

namespace tessera::ops {

// `sequences` documents of `length` tokens each, one after the other from token `begin`.
struct Span {
  std::int64_t begin, sequences, length;
};
std::vector<Span> spans_of(const AttentionShape& shape);

// A span's part of [tokens, heads, head_dim] as [sequences, heads, length, head_dim].
at::Tensor part(const at::Tensor& tensor, const Span& span);
// The spans' results, each [sequences, heads, length, head_dim], as [tokens, heads, head_dim].
at::Tensor joined(const std::vector<at::Tensor>& parts, const std::vector<Span>& spans, const at::Tensor& like);

}  // namespace tessera::ops
