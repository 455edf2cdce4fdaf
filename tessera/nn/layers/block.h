// One transformer block: norm, attention, norm, SwiGLU feed-forward or experts, each with a residual connection.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

#include "tessera/nn/experts/experts.h"
#include "tessera/nn/layers/attention.h"
#include "tessera/nn/layers/feed_forward.h"
#include "tessera/nn/layers/linear.h"

namespace tessera::nn {

struct Block {
  ColumnLinear qkv;  // includes the norm before attention
  AttentionHeads heads;
  std::optional<HeadNorms> head_norms;
  RowLinear attention_output;
  FeedForward feed_forward;        // used in a dense block
  std::optional<Experts> experts;  // used in a sparse block
  Recompute recompute = Recompute::none;
};
// The residual stream as a pair (h, residual) with the value h + residual. The next norm performs the addition.
struct Stream {
  SummedParts h;        // [own tokens, hidden]
  at::Tensor residual;  // [own tokens, hidden]; undefined before the first block
};
struct BlockOutput {
  Stream stream;
  RouterTerms terms;  // undefined for a dense block
};
// Runs the block with autograd, under the block's recompute policy. Pass the stream by move, so that the memory of its
// parts is free during the block.
BlockOutput block_forward(const PassState& pass, const Block& block, Stream stream, const TokenLayout& tokens,
                          const ops::RopeTable& rope);
// Runs the block on the next tokens of a sequence. Stores the keys and values of the tokens in a cache. Without
// gradients.
Stream cached_block_forward(const PassState& pass, const Block& block, Stream stream, const TokenLayout& tokens,
                            const ops::RopeTable& rope, const CachePlace& place);

}  // namespace tessera::nn
