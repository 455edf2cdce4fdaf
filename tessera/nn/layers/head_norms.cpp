#include "tessera/nn/layers/head_norms.h"

#include <ATen/ops/cat.h>

namespace tessera::nn {
namespace {

// The parts of q | k | v, or of their gradients. Each head of q and k is one row.
struct HeadRows {
  at::Tensor q, k;  // [tokens * heads, head_dim], contiguous
  at::Tensor v;     // [tokens, kv_heads * head_dim]
};

HeadRows rows_of(const AttentionHeads& heads, const at::Tensor& qkv) {
  const std::int64_t q = heads.q_heads * heads.head_dim, kv = heads.kv_heads * heads.head_dim;
  const auto rows = [&](std::int64_t first, std::int64_t columns) {
    return qkv.narrow(1, first, columns).contiguous().view({qkv.size(0) * columns / heads.head_dim, heads.head_dim});
  };
  return {.q = rows(0, q), .k = rows(q, kv), .v = qkv.narrow(1, q + kv, kv)};
}

at::Tensor stacked(const AttentionHeads& heads, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const std::int64_t tokens = v.size(0), kv = heads.kv_heads * heads.head_dim;
  return at::cat({q.view({tokens, heads.q_heads * heads.head_dim}), k.view({tokens, kv}), v.reshape({tokens, kv})}, 1);
}

}  // namespace

NormedQkv head_norms_forward(const PassState& pass, const HeadNorms& norms, const AttentionHeads& heads,
                             const at::Tensor& qkv) {
  const HeadRows rows = rows_of(heads, qkv);
  const ops::RmsNorm q = norm_forward(pass, norms.q, rows.q, {}), k = norm_forward(pass, norms.k, rows.k, {});
  return {.qkv = stacked(heads, q.y, k.y, rows.v),
          .statistics = {.q = rows.q, .k = rows.k, .q_rstd = q.rstd, .k_rstd = k.rstd}};
}

at::Tensor recompute_head_norms(const PassState& pass, const HeadNorms& norms, const AttentionHeads& heads,
                                const HeadStatistics& kept, const at::Tensor& v) {
  const at::Tensor q = recompute_norm(pass, norms.q, kept.q, kept.q_rstd);
  return stacked(heads, q, recompute_norm(pass, norms.k, kept.k, kept.k_rstd), v);
}

at::Tensor head_norms_backward(const PassState& pass, const HeadNorms& norms, const AttentionHeads& heads,
                               const HeadStatistics& kept, const at::Tensor& gradient) {
  const HeadRows rows = rows_of(heads, gradient);
  const at::Tensor q = norm_backward(pass, norms.q, rows.q, {}, kept.q, kept.q_rstd).x;
  const at::Tensor k = norm_backward(pass, norms.k, rows.k, {}, kept.k, kept.k_rstd).x;
  return stacked(heads, q, k, rows.v);
}

}  // namespace tessera::nn
