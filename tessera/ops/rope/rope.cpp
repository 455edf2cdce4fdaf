#include "tessera/ops/rope/rope.h"

#include <cmath>
#include <numbers>

#include "tessera/base/error.h"
#include "tessera/ops/arithmetic.h"
#include "tessera/ops/aten_types.h"
#include "tessera/ops/rope/rope_kernels.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {
namespace {

// Scales a frequency as Hugging Face transformers does for "llama3". The frequencies of long waves (fewer than
// low_freq_factor turns in the original context) are divided by `factor`. The frequencies of short waves do not change.
// Between these two cases, the frequency is interpolated linearly in the number of turns.
double scaled_frequency(double frequency, const RopeScaling& scaling) {
  const double turns = static_cast<double>(scaling.original_max_position) * frequency / (2 * std::numbers::pi);
  if (turns < scaling.low_freq_factor) return frequency / scaling.factor;
  if (turns > scaling.high_freq_factor) return frequency;
  const double blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1 - blend) * frequency / scaling.factor + blend * frequency;
}

}  // namespace

at::Tensor checked_positions(const at::Tensor& positions, std::int64_t tokens, const RopeTable& table,
                             std::int64_t head_dim, at::ScalarType type) {
  TESSERA_CHECK(table.cosine.defined() && table.sine.defined() && table.cosine.dim() == 2,
                "rope: expected a table of angles, got none");
  require_writable(table.cosine, {table.cosine.size(0), head_dim / 2}, accumulator_type(type), "rope cosine");
  require_writable(table.sine, table.cosine.sizes(), accumulator_type(type), "rope sine");
  at::Tensor result = dense_like(positions, {tokens}, at::kLong, "rope positions");
  if (!result.is_cpu()) return result;  // on CUDA, the kernel checks the positions
  const auto* values = result.const_data_ptr<std::int64_t>();
  for (std::int64_t token = 0; token < tokens; ++token)
    TESSERA_CHECK(values[token] >= 0 && values[token] < table.cosine.size(0),
                  "rope: position {} of token {}: expected 0 to {}", values[token], token, table.cosine.size(0) - 1);
  return result;
}

RopeTable make_rope_table(std::int64_t positions, std::int64_t head_dim, double theta,
                          const std::optional<RopeScaling>& scaling, at::ScalarType model_type, at::Device device) {
  TESSERA_CHECK(head_dim > 0 && head_dim % 2 == 0, "rope: head_dim {}: expected an even number", head_dim);
  TESSERA_CHECK(positions >= 0, "rope: {} positions: expected 0 or more", positions);
  const at::ScalarType type = accumulator_type(model_type);
  const std::int64_t half = head_dim / 2;
  if (device.is_meta())
    return {.cosine = make({positions, half}, type, device), .sine = make({positions, half}, type, device)};
  RopeTable table{.cosine = make({positions, half}, type), .sine = make({positions, half}, type)};
  dispatch_accumulator(to_dtype(type), [&](auto element) {
    using A = decltype(element);
    A* cosine = table.cosine.mutable_data_ptr<A>();
    A* sine = table.sine.mutable_data_ptr<A>();
    for (std::int64_t i = 0; i < half; ++i) {
      double frequency = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
      if (scaling) frequency = scaled_frequency(frequency, *scaling);
      for (std::int64_t position = 0; position < positions; ++position) {
        const double angle = static_cast<double>(position) * frequency;
        cosine[position * half + i] = static_cast<A>(std::cos(angle));
        sine[position * half + i] = static_cast<A>(std::sin(angle));
      }
    }
  });
  return {.cosine = table.cosine.to(device), .sine = table.sine.to(device)};
}

Qkv split_rope_forward(const at::Tensor& qkv, const at::Tensor& positions, const RopeTable& table, std::int64_t q_heads,
                       std::int64_t kv_heads, std::int64_t head_dim) {
  TESSERA_CHECK(q_heads >= 0 && kv_heads >= 0 && head_dim > 0 && head_dim % 2 == 0,
                "rope: {} query heads, {} key/value heads, head_dim {}: expected 0 or more heads and an even head_dim",
                q_heads, kv_heads, head_dim);
  require_one_device({qkv, positions, table.cosine, table.sine}, "split_rope_forward");
  const at::Tensor stacked = dense(qkv, 2, "rope qkv");
  const at::ScalarType type = stacked.scalar_type();
  const std::int64_t tokens = stacked.size(0);
  TESSERA_CHECK(stacked.size(1) == (q_heads + 2 * kv_heads) * head_dim,
                "rope qkv: {} columns, expected ({} + 2 * {}) * {}", stacked.size(1), q_heads, kv_heads, head_dim);
  const at::Tensor rows = checked_positions(positions, tokens, table, head_dim, type);
  const at::Device device = stacked.device();
  Qkv result{.q = make({tokens, q_heads, head_dim}, type, device),
             .k = make({tokens, kv_heads, head_dim}, type, device),
             .v = make({tokens, kv_heads, head_dim}, type, device)};
  run_kernel(memory_work("rope", 2 * bytes_of({stacked})), stacked, cpu::split_rope_forward,
             cuda_only<cuda::split_rope_forward>,
             {.type = to_dtype(type),
              .tokens = tokens,
              .q_heads = q_heads,
              .kv_heads = kv_heads,
              .head_dim = head_dim,
              .positions = ids_of(rows),
              .cosine = table.cosine.const_data_ptr(),
              .sine = table.sine.const_data_ptr(),
              .table_rows = table.cosine.size(0),
              .stacked = stacked.const_data_ptr(),
              .q = result.q.mutable_data_ptr(),
              .k = result.k.mutable_data_ptr(),
              .v = result.v.mutable_data_ptr()});
  return result;
}

at::Tensor split_rope_backward(const Qkv& gradient, const at::Tensor& positions, const RopeTable& table) {
  require_one_device({gradient.q, gradient.k, gradient.v, positions, table.cosine, table.sine}, "split_rope_backward");
  const at::Tensor q = dense(gradient.q, 3, "rope dq"), k = dense(gradient.k, 3, "rope dk");
  const at::Tensor v = dense_like(gradient.v, k.sizes(), k.scalar_type(), "rope dv");
  const at::ScalarType type = q.scalar_type();
  const std::int64_t tokens = q.size(0), head_dim = q.size(2);
  TESSERA_CHECK(k.scalar_type() == type && k.size(0) == tokens && k.size(2) == head_dim,
                "rope: dk has shape [{}, {}, {}] and type {}, expected {} tokens, head_dim {} and type {} as in dq",
                k.size(0), k.size(1), k.size(2), c10::toString(k.scalar_type()), tokens, head_dim, c10::toString(type));
  const at::Tensor rows = checked_positions(positions, tokens, table, head_dim, type);
  at::Tensor stacked = make({tokens, (q.size(1) + 2 * k.size(1)) * head_dim}, type, q.device());
  run_kernel(memory_work("rope backward", 2 * bytes_of({stacked})), q, cpu::split_rope_backward,
             cuda_only<cuda::split_rope_backward>,
             {.type = to_dtype(type),
              .tokens = tokens,
              .q_heads = q.size(1),
              .kv_heads = k.size(1),
              .head_dim = head_dim,
              .positions = ids_of(rows),
              .cosine = table.cosine.const_data_ptr(),
              .sine = table.sine.const_data_ptr(),
              .table_rows = table.cosine.size(0),
              .stacked = stacked.mutable_data_ptr(),
              .q = q.const_data_ptr(),
              .k = k.const_data_ptr(),
              .v = v.const_data_ptr()});
  return stacked;
}

}  // namespace tessera::ops
