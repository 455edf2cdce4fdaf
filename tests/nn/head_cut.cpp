#include "tests/nn/head_cut.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>

#include "tests/nn/plain_formulas.h"

namespace tessera::nn {

HeadCut head_cut(int tp) {
  HeadCut cut;
  for (const std::vector<layout::Range>& ranges : uneven_parts(HeadCut::kQ, tp)) {
    AttentionHeads& heads = cut.heads.emplace_back(AttentionHeads{.head_dim = HeadCut::kDim, .kv_of_q = {}});
    std::vector<layout::Range>&q = cut.q_columns.emplace_back(), &qkv = cut.qkv_columns.emplace_back();
    for (const layout::Range& range : ranges) {
      const std::int64_t first_kv = range.begin / HeadCut::kGroup;
      heads.q_heads = range.size();
      heads.kv_heads = (range.end + HeadCut::kGroup - 1) / HeadCut::kGroup - first_kv;
      for (std::int64_t head = range.begin; head < range.end; ++head)
        heads.kv_of_q.push_back(static_cast<int>(head / HeadCut::kGroup - first_kv));
      q.push_back({range.begin * HeadCut::kDim, range.end * HeadCut::kDim});
      qkv.push_back(q.back());
      for (const std::int64_t first : {HeadCut::kQ, HeadCut::kQ + HeadCut::kKv})
        qkv.push_back({(first + first_kv) * HeadCut::kDim, (first + first_kv + heads.kv_heads) * HeadCut::kDim});
    }
  }
  return cut;
}

namespace {

std::vector<std::int64_t> starts_of(Documents documents) {
  return documents == Documents::packed ? std::vector<std::int64_t>{0, 3, 4, 8} : std::vector<std::int64_t>{0, 4, 8};
}

// x: [tokens, heads, head_dim]. Pairs (i, i + head_dim / 2) are rotated by position * theta^(-2 i / head_dim).
at::Tensor turned(const at::Tensor& x, const at::Tensor& positions) {
  const std::int64_t half = x.size(2) / 2;
  const at::Tensor frequencies =
      at::arange(half, at::kDouble).mul(-2.0 / static_cast<double>(x.size(2)) * std::log(kTheta)).exp();
  const at::Tensor angles = (positions.to(at::kDouble).unsqueeze(1) * frequencies).unsqueeze(1);
  const at::Tensor first = x.narrow(2, 0, half), second = x.narrow(2, half, half);
  return at::cat({first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()}, 2);
}

// Returns 0 where a token may attend (to itself and to earlier tokens of its document), otherwise minus infinity.
at::Tensor mask_of(Documents documents) {
  at::Tensor mask = at::zeros({kAttentionTokens, kAttentionTokens}, at::kDouble);
  mask.fill_(-std::numeric_limits<double>::infinity());
  const std::vector<std::int64_t> starts = starts_of(documents);
  for (std::size_t i = 0; i + 1 < starts.size(); ++i)
    for (std::int64_t token = starts[i]; token < starts[i + 1]; ++token)
      mask.select(0, token).narrow(0, starts[i], token - starts[i] + 1).fill_(0);
  return mask;
}

}  // namespace

TokenLayout token_layout(Documents documents) {
  const bool packed = documents == Documents::packed;
  TokenLayout tokens{.batch = packed ? 1 : 2, .seq_len = packed ? 8 : 4};
  tokens.positions = at::empty({kAttentionTokens}, at::kLong);
  const std::vector<std::int64_t> starts = starts_of(documents);
  for (std::size_t i = 0; i + 1 < starts.size(); ++i)
    for (std::int64_t token = starts[i]; token < starts[i + 1]; ++token)
      tokens.positions.mutable_data_ptr<std::int64_t>()[token] = token - starts[i];
  if (packed) tokens.cu_seqlens = starts;
  return tokens;
}

at::Tensor plain_attention(const at::Tensor& qkv, const at::Tensor& q_norm, const at::Tensor& k_norm,
                           Documents documents) {
  const at::Tensor positions = token_layout(documents).positions, mask = mask_of(documents);
  const auto heads = [&](std::int64_t first, std::int64_t count) {
    return qkv.narrow(1, first * HeadCut::kDim, count * HeadCut::kDim)
        .reshape({kAttentionTokens, count, HeadCut::kDim});
  };
  at::Tensor q = heads(0, HeadCut::kQ), k = heads(HeadCut::kQ, HeadCut::kKv);
  const at::Tensor v = heads(HeadCut::kQ + HeadCut::kKv, HeadCut::kKv);
  if (q_norm.defined()) q = plain_norm(q, q_norm);
  if (k_norm.defined()) k = plain_norm(k, k_norm);
  q = turned(q, positions), k = turned(k, positions);
  std::vector<at::Tensor> out;
  for (std::int64_t head = 0; head < HeadCut::kQ; ++head) {
    const std::int64_t kv = head / HeadCut::kGroup;
    const at::Tensor scores =
        at::matmul(q.select(1, head), k.select(1, kv).t()) * (1 / std::sqrt(static_cast<double>(HeadCut::kDim)));
    out.push_back(at::matmul((scores + mask).softmax(1), v.select(1, kv)));
  }
  return at::cat(out, 1);
}

}  // namespace tessera::nn
