// Groups the documents of a batch into spans. One call of an attention kernel computes one span. Internal to ops.
#pragma once
#include <cstdint>
#include <vector>

#include "tessera/ops/attention/attention.h"

namespace tessera::ops {

// `sequences` adjacent documents of `length` tokens each, starting at token `begin`.
struct Span {
  std::int64_t begin, sequences, length;
};
std::vector<Span> spans_of(const AttentionShape& shape);

// Returns a span's tokens of [tokens, heads, head_dim] as [sequences, heads, length, head_dim].
at::Tensor part(const at::Tensor& tensor, const Span& span);
// Concatenates the results of the spans. Each result is [sequences, heads, length, head_dim]. Returns [tokens, heads,
// head_dim].
at::Tensor joined(const std::vector<at::Tensor>& parts, const std::vector<Span>& spans, const at::Tensor& like);

}  // namespace tessera::ops
