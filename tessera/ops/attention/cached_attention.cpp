#include "tessera/ops/attention/cached_attention.h"

#include "tessera/base/error.h"
#include "tessera/ops/aten_types.h"
#include "tessera/ops/attention/attention.h"
#include "tessera/ops/attention/attention_device.h"
#include "tessera/ops/attention/attention_kernels.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {
namespace {

void check(const at::Tensor& q, const CachedAttention& cached) {
  TESSERA_CHECK(q.defined() && q.dim() == 3, "cached attention q: expected [tokens, heads, head_dim]");
  TESSERA_CHECK(cached.keys.defined() && cached.keys.dim() == 3,
                "cached attention keys: expected [capacity, heads, head_dim]");
  TESSERA_CHECK(cached.first >= 0 && cached.first + q.size(0) <= cached.keys.size(0),
                "cached attention: {} tokens after {}, expected at most the {} rows of the cache", q.size(0),
                cached.first, cached.keys.size(0));
  TESSERA_CHECK(static_cast<std::int64_t>(cached.kv_of_q.size()) == q.size(1),
                "cached attention: kv_of_q has {} entries for {} query heads", cached.kv_of_q.size(), q.size(1));
  for (const int stored : cached.kv_of_q)
    TESSERA_CHECK(stored >= 0 && stored < cached.keys.size(1),
                  "cached attention: kv_of_q holds {}, expected an index of one of {} key/value heads", stored,
                  cached.keys.size(1));
  require_one_device({q, cached.keys, cached.values}, "cached attention");
}

Work work_of(const at::Tensor& q, const CachedAttention& cached) {
  const auto pairs = static_cast<double>(q.size(0)) * static_cast<double>(cached.first + q.size(0));
  const auto read = static_cast<double>(cached.first + q.size(0)) * static_cast<double>(cached.keys.size(1)) *
                    static_cast<double>(q.size(2)) * static_cast<double>(q.element_size());
  return {.name = "cached attention",
          .kind = WorkKind::attention_forward,
          .flops = 4 * pairs * static_cast<double>(q.size(1) * q.size(2)),
          .bytes = 2 * read + 2 * static_cast<double>(q.nbytes()),
          .sizes = {.batch = 1,
                    .seq_len = q.size(0),
                    .q_heads = q.size(1),
                    .kv_heads = cached.keys.size(1),
                    .head_dim = q.size(2)}};
}

}  // namespace

at::Tensor cached_attention(const at::Tensor& q, const CachedAttention& cached) {
  check(q, cached);
  const std::int64_t count = q.size(0);
  const at::ScalarType type = q.scalar_type();
  const at::Tensor queries = dense(q, 3, "cached attention q");
  const at::Tensor keys = dense_like(cached.keys, cached.keys.sizes(), type, "cached attention keys");
  const at::Tensor values = dense_like(cached.values, cached.keys.sizes(), type, "cached attention values");
  if (cached.first == 0)
    return attention_forward(
               {.q = queries, .k = keys.narrow(0, 0, count), .v = values.narrow(0, 0, count)},
               {.batch = 1, .seq_len = count, .kv_of_q = cached.kv_of_q, .cu_seqlens = {}, .scale = cached.scale})
        .out;
  at::Tensor out = make({count, q.size(1) * q.size(2)}, type, q.device());
  if (q.numel() == 0) return out;
  if (is_dry(q)) return report(work_of(q, cached)), out;
  if (on_cuda(q))
    return cuda_only<cuda::cached_attention>(
        queries,
        {.keys = keys, .values = values, .first = cached.first, .kv_of_q = cached.kv_of_q, .scale = cached.scale});
  cpu::cached_attention({.type = to_dtype(type),
                         .first = cached.first,
                         .count = count,
                         .kv_heads = keys.size(1),
                         .head_dim = q.size(2),
                         .map = cached.kv_of_q,
                         .scale = cached.scale,
                         .q = queries.const_data_ptr(),
                         .k = keys.const_data_ptr(),
                         .v = values.const_data_ptr(),
                         .out = out.mutable_data_ptr()});
  return out;
}

}  // namespace tessera::ops
