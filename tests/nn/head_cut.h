// Distributes attention heads over tp ranks for tests. A key/value head is on every rank that reads it.
#pragma once
#include <string>

#include "tessera/nn/layers/attention.h"
#include "tests/nn/layer_check.h"

namespace tessera::nn {

struct HeadCut {
  static constexpr std::int64_t kQ = 6, kKv = 3, kDim = 4, kGroup = kQ / kKv;
  static constexpr std::int64_t kWidth = (kQ + 2 * kKv) * kDim;  // width of q | k | v
  // By tp rank. At tp 2 both ranks read key/value head 1; at tp 3 rank 1 has no head.
  RankRanges q_columns, qkv_columns;
  std::vector<AttentionHeads> heads;
};
HeadCut head_cut(int tp);

// How the 8 tokens are divided: two sequences of 4 tokens, or one sequence of 8 tokens with several documents.
enum class Documents : std::uint8_t { sequences, packed };
TokenLayout token_layout(Documents documents);
inline constexpr std::int64_t kAttentionTokens = 8;
inline constexpr double kTheta = 100;

// Computes attention with plain formulas from the logical [tokens, q | k | v]. Norms may be undefined.
at::Tensor plain_attention(const at::Tensor& qkv, const at::Tensor& q_norm, const at::Tensor& k_norm,
                           Documents documents);

}  // namespace tessera::nn
