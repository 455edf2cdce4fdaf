// Rotary position embedding (Su et al. 2021) in the rotate-half form (pairs i, i + d/2), with Llama-3 frequency
// scaling. The embedding is fused with the split of the stacked qkv projection.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace tessera::ops {

struct RopeScaling {  // parameters of "rope_type": "llama3" in a Hugging Face config.json
  double factor = 8.0, low_freq_factor = 1.0, high_freq_factor = 4.0;
  std::int64_t original_max_position = 8192;
};
struct RopeTable {
  at::Tensor cosine, sine;  // [positions, head_dim / 2], in the accumulator type of the model's type
};
// Computes angles in fp64, unless the device has no memory (work.h). Throws Error if head_dim is odd.
RopeTable make_rope_table(std::int64_t positions, std::int64_t head_dim, double theta,
                          const std::optional<RopeScaling>& scaling, at::ScalarType model_type,
                          at::Device device = at::kCPU);

// Returns the positions as a dense tensor. Throws Error for other sizes or types than those of split_rope_forward, and
// on the CPU for a position outside the table.
at::Tensor checked_positions(const at::Tensor& positions, std::int64_t tokens, const RopeTable& table,
                             std::int64_t head_dim, at::ScalarType type);

struct Qkv {
  at::Tensor q;     // [tokens, q_heads, head_dim]
  at::Tensor k, v;  // [tokens, kv_heads, head_dim]
};
// `qkv` is [tokens, (q_heads + 2 kv_heads) * head_dim], stacked as q | k | v. `positions` is [tokens] int64; each
// position is below the number of positions of the table. q and k are rotated in fp32 (fp64 for fp64) and rounded once.
// The numbers of heads may be 0. A position outside the table is an error on the CPU. On CUDA the host does not read
// positions. If a position is outside the table, q and k of its token become NaN.
Qkv split_rope_forward(const at::Tensor& qkv, const at::Tensor& positions, const RopeTable& table, std::int64_t q_heads,
                       std::int64_t kv_heads, std::int64_t head_dim);
// Returns the gradient of the stacked qkv.
at::Tensor split_rope_backward(const Qkv& gradient, const at::Tensor& positions, const RopeTable& table);

}  // namespace tessera::ops
