#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/triu.h>

#include <limits>

#include "tessera/ops/attention/attention_device.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops::cuda {
namespace {

// A single new token attends to every row, so the kernel needs no mask.
bool takes_flash(const at::Tensor& q) {
  return q.size(0) == 1 && q.scalar_type() == at::kBFloat16 && q.size(2) % 8 == 0 && q.size(2) <= kLargestHead;
}

at::Tensor starts_of(std::int64_t length, at::Device device) {
  return at::arange(0, length + 1, length, at::TensorOptions(device).dtype(at::kInt));
}

// Returns [heads, tokens, head_dim] in the accumulator type.
at::Tensor matrices(const at::Tensor& tensor) {
  return tensor.transpose(0, 1).to(accumulator_type(tensor.scalar_type()));
}

}  // namespace

at::Tensor cached_attention(const at::Tensor& q, const CachedAttention& cached) {
  const std::int64_t count = q.size(0), length = cached.first + count;
  at::Tensor keys = cached.keys.narrow(0, 0, length), values = cached.values.narrow(0, 0, length);
  const bool flash = takes_flash(q);
  if (!flash || !is_regular(cached.kv_of_q, keys.size(1))) {
    keys = expanded(keys, cached.kv_of_q);
    values = expanded(values, cached.kv_of_q);
  }
  const std::int64_t flat[] = {count, q.size(1) * q.size(2)};
  if (flash) {
    auto [out, log_sum, seed, offset, mask] = at::_flash_attention_forward(
        q, keys, values, starts_of(count, q.device()), starts_of(length, q.device()), count, length, 0.0,
        /*is_causal=*/false, /*return_debug_mask=*/false, cached.scale);
    return out.contiguous().view(flat);
  }
  at::Tensor scores = at::bmm(matrices(q), matrices(keys).transpose(1, 2)).mul_(cached.scale);
  if (count > 1) {
    const at::Tensor later = at::triu(at::ones({count, length}, q.options().dtype(at::kBool)), cached.first + 1);
    scores.masked_fill_(later, -std::numeric_limits<double>::infinity());
  }
  const at::Tensor out = at::bmm(at::softmax(scores, -1), matrices(values));
  return out.transpose(0, 1).to(q.scalar_type()).contiguous().view(flat);
}

}  // namespace tessera::ops::cuda
