#include "tessera/ops/head_norms/head_norm_rope.h"

#include <ATen/ops/cat.h>

#include <string_view>

#include "tessera/base/error.h"
#include "tessera/ops/aten_types.h"
#include "tessera/ops/head_norms/head_norm_rope_kernels.h"
#include "tessera/ops/norm/rms_norm.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {
namespace {

// The checked operands of a call, each dense.
struct NormedOperands {
  at::Tensor qkv, positions, q_weight, k_weight;
};
NormedOperands normed_operands(const HeadNormRope& call, std::string_view what) {
  const HeadSizes& heads = call.heads;
  TESSERA_CHECK(heads.q_heads >= 0 && heads.kv_heads >= 0 && heads.head_dim > 0 && heads.head_dim % 2 == 0,
                "{}: {} query heads, {} key/value heads, head_dim {}: expected 0 or more heads and an even head_dim",
                what, heads.q_heads, heads.kv_heads, heads.head_dim);
  require_one_device({call.qkv, call.positions, call.q.weight, call.k.weight, call.rope.cosine, call.rope.sine}, what);
  const at::Tensor qkv = dense(call.qkv, 2, "head norms qkv");
  TESSERA_CHECK(qkv.size(1) == (heads.q_heads + 2 * heads.kv_heads) * heads.head_dim,
                "{} qkv: {} columns, expected ({} + 2 * {}) * {}", what, qkv.size(1), heads.q_heads, heads.kv_heads,
                heads.head_dim);
  const at::ScalarType type = qkv.scalar_type();
  return {.qkv = qkv,
          .positions = checked_positions(call.positions, qkv.size(0), call.rope, heads.head_dim, type),
          .q_weight = dense_like(call.q.weight, {heads.head_dim}, type, "head norms q weight"),
          .k_weight = dense_like(call.k.weight, {heads.head_dim}, type, "head norms k weight")};
}

// Numbers of columns of stacked rows, or of their gradient: of q, and of k and v each.
struct HeadColumns {
  std::int64_t q = 0, kv = 0, head_dim = 0;
};
HeadColumns head_columns(const HeadSizes& heads) {
  return {.q = heads.q_heads * heads.head_dim, .kv = heads.kv_heads * heads.head_dim, .head_dim = heads.head_dim};
}
// Returns some heads of stacked rows with one row for each head: [tokens * heads, head_dim].
at::Tensor head_rows(const at::Tensor& stacked, std::int64_t first, std::int64_t columns, std::int64_t head_dim) {
  return stacked.narrow(1, first, columns).contiguous().view({stacked.size(0) * columns / head_dim, head_dim});
}
// ---- The two operators one after the other: on CPUs, and on CUDA for heads without kernels.

// The statistics of the heads of q or of k, [tokens * heads], and back.
at::Tensor statistics_of(const at::Tensor& rstd, std::int64_t first, std::int64_t heads) {
  return rstd.narrow(1, first, heads).contiguous().view({rstd.size(0) * heads});
}

Qkv turned(const HeadNormRope& call, const NormedOperands& operands, const at::Tensor& q, const at::Tensor& k) {
  const HeadColumns columns = head_columns(call.heads);
  const std::int64_t tokens = operands.qkv.size(0);
  const at::Tensor v = operands.qkv.narrow(1, columns.q + columns.kv, columns.kv);
  const at::Tensor normed = at::cat({q.view({tokens, columns.q}), k.view({tokens, columns.kv}), v}, 1);
  Qkv result = split_rope_forward(normed, operands.positions, call.rope, call.heads.q_heads, call.heads.kv_heads,
                                  call.heads.head_dim);
  result.v = values_of(operands.qkv, call.heads);
  return result;
}

NormedHeads plain_forward(const HeadNormRope& call, const NormedOperands& operands) {
  const HeadColumns columns = head_columns(call.heads);
  const std::int64_t tokens = operands.qkv.size(0);
  const auto normed = [&](const HeadNorm& norm, std::int64_t first, std::int64_t count) {
    return rms_norm_forward(head_rows(operands.qkv, first, count, columns.head_dim), {}, norm.weight, norm.eps);
  };
  const RmsNorm q = normed(call.q, 0, columns.q), k = normed(call.k, columns.q, columns.kv);
  return {.rotated = turned(call, operands, q.y, k.y),
          .rstd = at::cat({q.rstd.view({tokens, call.heads.q_heads}), k.rstd.view({tokens, call.heads.kv_heads})}, 1)};
}

Qkv plain_apply(const HeadNormRope& call, const NormedOperands& operands, const at::Tensor& rstd) {
  const HeadColumns columns = head_columns(call.heads);
  const at::Tensor q = rms_norm_apply(head_rows(operands.qkv, 0, columns.q, columns.head_dim),
                                      statistics_of(rstd, 0, call.heads.q_heads), operands.q_weight);
  const at::Tensor k = rms_norm_apply(head_rows(operands.qkv, columns.q, columns.kv, columns.head_dim),
                                      statistics_of(rstd, call.heads.q_heads, call.heads.kv_heads), operands.k_weight);
  return turned(call, operands, q, k);
}

HeadNormGradients plain_backward(const HeadNormRope& call, const NormedOperands& operands, const at::Tensor& rstd,
                                 const Qkv& gradient, HeadNormGradients result) {
  const HeadColumns columns = head_columns(call.heads);
  const at::Tensor turned = split_rope_backward(gradient, operands.positions, call.rope);
  const auto normed = [&](const at::Tensor& weight, at::Tensor& dweight, std::int64_t first, std::int64_t count) {
    const auto rows = [&](const at::Tensor& stacked) { return head_rows(stacked, first, count, columns.head_dim); };
    const at::Tensor statistics = statistics_of(rstd, first / columns.head_dim, count / columns.head_dim);
    const at::Tensor dx = rms_norm_backward(rows(turned), {}, rows(operands.qkv), statistics, weight, dweight, false);
    return dx.view({turned.size(0), count});
  };
  const at::Tensor dq = normed(operands.q_weight, result.q_weight, 0, columns.q);
  const at::Tensor dk = normed(operands.k_weight, result.k_weight, columns.q, columns.kv);
  result.qkv = at::cat({dq, dk, turned.narrow(1, columns.q + columns.kv, columns.kv)}, 1);
  return result;
}

// ---- Kernels

cuda::HeadRows kernel_rows(const HeadNormRope& call, const NormedOperands& operands) {
  return {.type = to_dtype(operands.qkv.scalar_type()),
          .tokens = operands.qkv.size(0),
          .q_heads = call.heads.q_heads,
          .kv_heads = call.heads.kv_heads,
          .head_dim = call.heads.head_dim,
          .positions = ids_of(operands.positions),
          .cosine = call.rope.cosine.const_data_ptr(),
          .sine = call.rope.sine.const_data_ptr(),
          .table_rows = call.rope.cosine.size(0),
          .stacked = operands.qkv.const_data_ptr(),
          .q_weight = operands.q_weight.const_data_ptr(),
          .k_weight = operands.k_weight.const_data_ptr()};
}

bool has_head_kernels(const at::Tensor& qkv, const HeadSizes& heads) {
  return on_cuda(qkv) && cuda_only<cuda::has_head_norm_kernels>(to_dtype(qkv.scalar_type()), heads.head_dim);
}

// Returns new q and k, and v as a view of qkv.
Qkv new_heads(const at::Tensor& qkv, const HeadSizes& heads) {
  const std::int64_t tokens = qkv.size(0);
  return {.q = make({tokens, heads.q_heads, heads.head_dim}, qkv.scalar_type(), qkv.device()),
          .k = make({tokens, heads.kv_heads, heads.head_dim}, qkv.scalar_type(), qkv.device()),
          .v = values_of(qkv, heads)};
}

Qkv run_kernels(const HeadNormRope& call, const NormedOperands& operands, const at::Tensor& rstd, bool reads_rstd) {
  Qkv result = new_heads(operands.qkv, call.heads);
  if (is_dry(operands.qkv)) {
    report(memory_work(reads_rstd ? "head norms again" : "head norms", 2 * bytes_of({result.q, result.k})));
    return result;
  }
  cuda_only<cuda::head_norm_rope_forward>(kernel_rows(call, operands),
                                          {.q_eps = call.q.eps,
                                           .k_eps = call.k.eps,
                                           .rstd = rstd.mutable_data_ptr(),
                                           .reads_rstd = reads_rstd,
                                           .q = result.q.mutable_data_ptr(),
                                           .k = result.k.mutable_data_ptr()},
                                          stream_of(operands.qkv));
  return result;
}

at::ScalarType statistics_type(const NormedOperands& operands) {
  return accumulator_type(operands.qkv.scalar_type());
}
at::Tensor checked_statistics(const at::Tensor& rstd, const NormedOperands& operands, const HeadSizes& heads) {
  return dense_like(rstd, {operands.qkv.size(0), heads.q_heads + heads.kv_heads}, statistics_type(operands),
                    "head norms rstd");
}

}  // namespace

at::Tensor values_of(const at::Tensor& qkv, const HeadSizes& heads) {
  const HeadColumns columns = head_columns(heads);
  return qkv.narrow(1, columns.q + columns.kv, columns.kv).view({qkv.size(0), heads.kv_heads, heads.head_dim});
}

NormedHeads head_norm_rope_forward(const HeadNormRope& call) {
  const NormedOperands operands = normed_operands(call, "head_norm_rope_forward");
  const at::Tensor& qkv = operands.qkv;
  if (!is_dry(qkv) && !has_head_kernels(qkv, call.heads)) return plain_forward(call, operands);
  const at::Tensor rstd =
      make({qkv.size(0), call.heads.q_heads + call.heads.kv_heads}, statistics_type(operands), qkv.device());
  return {.rotated = run_kernels(call, operands, rstd, /*reads_rstd=*/false), .rstd = rstd};
}

Qkv head_norm_rope_apply(const HeadNormRope& call, const at::Tensor& rstd) {
  const NormedOperands operands = normed_operands(call, "head_norm_rope_apply");
  const at::Tensor statistics = checked_statistics(rstd, operands, call.heads);
  if (!is_dry(operands.qkv) && !has_head_kernels(operands.qkv, call.heads))
    return plain_apply(call, operands, statistics);
  return run_kernels(call, operands, statistics, /*reads_rstd=*/true);
}

HeadNormGradients head_norm_rope_backward(const HeadNormRope& call, const at::Tensor& rstd, const Qkv& gradient) {
  const NormedOperands operands = normed_operands(call, "head_norm_rope_backward");
  const HeadSizes& heads = call.heads;
  const at::Tensor& qkv = operands.qkv;
  const at::ScalarType type = qkv.scalar_type();
  require_one_device({qkv, rstd, gradient.q, gradient.k, gradient.v}, "head_norm_rope_backward");
  const at::Tensor statistics = checked_statistics(rstd, operands, heads);
  const std::int64_t q_shape[] = {qkv.size(0), heads.q_heads, heads.head_dim};
  const std::int64_t kv_shape[] = {qkv.size(0), heads.kv_heads, heads.head_dim};
  const Qkv rows{dense_like(gradient.q, q_shape, type, "head norms dq"),
                 dense_like(gradient.k, kv_shape, type, "head norms dk"),
                 dense_like(gradient.v, kv_shape, type, "head norms dv")};
  HeadNormGradients result{.qkv = {},
                           .q_weight = make({heads.head_dim}, statistics_type(operands), qkv.device()),
                           .k_weight = make({heads.head_dim}, statistics_type(operands), qkv.device())};
  if (!is_dry(qkv) && !has_head_kernels(qkv, heads)) return plain_backward(call, operands, statistics, rows, result);
  result.qkv = make(qkv.sizes(), type, qkv.device());
  if (is_dry(qkv)) {
    report(memory_work("head norms backward", 2 * bytes_of({result.qkv}) + bytes_of({rows.q, rows.k})));
    return result;
  }
  const cuda::HeadRows stacked = kernel_rows(call, operands);
  at::Tensor scratch = make({cuda_only<cuda::head_norm_scratch>(stacked)}, statistics_type(operands), qkv.device());
  cuda_only<cuda::head_norm_rope_backward>(stacked,
                                           {.rstd = statistics.const_data_ptr(),
                                            .dq = rows.q.const_data_ptr(),
                                            .dk = rows.k.const_data_ptr(),
                                            .dv = rows.v.const_data_ptr(),
                                            .dstacked = result.qkv.mutable_data_ptr(),
                                            .q_dweight = result.q_weight.mutable_data_ptr(),
                                            .k_dweight = result.k_weight.mutable_data_ptr(),
                                            .scratch = scratch.mutable_data_ptr()},
                                           stream_of(qkv));
  return result;
}

}  // namespace tessera::ops
