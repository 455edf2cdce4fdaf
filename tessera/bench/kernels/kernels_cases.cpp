#include "tessera/bench/kernels/kernels_cases.h"

#include <fmt/format.h>

#include <cmath>

#include "tessera/ops/attention/attention.h"
#include "tessera/ops/cross_entropy/cross_entropy.h"
#include "tessera/ops/embedding/embedding.h"
#include "tessera/ops/gemm/gemm.h"
#include "tessera/ops/head_norms/head_norm_rope.h"
#include "tessera/ops/norm/rms_norm.h"
#include "tessera/ops/optimizer/adamw.h"
#include "tessera/ops/optimizer/square_sums.h"
#include "tessera/ops/rope/rope.h"
#include "tessera/ops/swiglu/swiglu.h"

namespace tessera::bench {
namespace {

using quant::DType;

// Adds the products of a feed-forward layer's first weight.
void add_products(Cases& c) {
  const std::int64_t tokens = c.bench().tokens, in = c.bench().hidden, out = 2 * c.bench().ffn;
  const double x_bytes = c.rows(in), y_bytes = c.rows(out), weight_count = static_cast<double>(in * out);
  const double weight_bytes = weight_count * c.size(c.bench().type);
  const double operations = 2 * static_cast<double>(tokens) * weight_count;
  for (const bool forward : {true, false})
    c.cases.push_back({forward ? "gemm_fprop" : "gemm_dgrad", x_bytes + weight_bytes + y_bytes,
                       [=, &c](std::uint64_t seed) -> std::function<void()> {
                         const at::Tensor x = c.normal({tokens, forward ? in : out}, seed);
                         const at::Tensor w = c.normal({out, in}, seed + 1);
                         if (forward) return [=] { ops::gemm_fprop(x, w); };
                         return [=] { ops::gemm_dgrad(x, w); };
                       },
                       operations});
  c.cases.push_back({"gemm_wgrad", x_bytes + weight_count * c.size(c.wide()) + y_bytes,
                     [=, &c](std::uint64_t seed) {
                       const at::Tensor dy = c.normal({tokens, out}, seed), x = c.normal({tokens, in}, seed + 1);
                       at::Tensor dw = c.empty({out, in}, c.wide());
                       return [=]() mutable { ops::gemm_wgrad(dy, x, dw, false); };
                     },
                     operations});
}

ops::Qkv normal_heads(const Cases& c, std::uint64_t seed) {
  const KernelBench& b = c.bench();
  return {.q = c.normal({b.tokens, b.q_heads, b.head_dim}, seed),
          .k = c.normal({b.tokens, b.kv_heads, b.head_dim}, seed + 1),
          .v = c.normal({b.tokens, b.kv_heads, b.head_dim}, seed + 2)};
}

// Adds attention over one sequence. Causal attention needs only half of the scores, so only half of the operations are
// counted. On a GPU, types other than bf16 need memory for all scores of a layer.
void add_attention(Cases& c) {
  const KernelBench& b = c.bench();
  if (b.cuda && b.type != DType::bf16) return;
  ops::AttentionShape shape{.batch = 1, .seq_len = b.tokens, .scale = 1 / std::sqrt(static_cast<double>(b.head_dim))};
  for (std::int64_t head = 0; head < b.q_heads; ++head)
    shape.kv_of_q.push_back(static_cast<int>(head * b.kv_heads / b.q_heads));
  const double qkv_bytes = c.rows((b.q_heads + 2 * b.kv_heads) * b.head_dim);
  const double out_bytes = c.rows(b.q_heads * b.head_dim);
  const double product = static_cast<double>(b.tokens) * static_cast<double>(b.tokens * b.q_heads * b.head_dim);
  c.cases.push_back({"attention_forward", qkv_bytes + out_bytes,
                     [=, &c](std::uint64_t seed) {
                       const ops::Qkv qkv = normal_heads(c, seed);
                       return [=] { ops::attention_forward(qkv, shape); };
                     },
                     2 * product});
  c.cases.push_back({"attention_backward", 2 * (qkv_bytes + out_bytes),
                     [=, &c, &b](std::uint64_t seed) {
                       const ops::Qkv qkv = normal_heads(c, seed);
                       const at::Tensor dout = c.normal({b.tokens, b.q_heads * b.head_dim}, seed + 3);
                       const ops::Attention forward = ops::attention_forward(qkv, shape);
                       return [=] { ops::attention_backward(dout, qkv, forward, shape); };
                     },
                     5 * product});
}

void add_norms(Cases& c) {
  const std::int64_t tokens = c.bench().tokens, hidden = c.bench().hidden;
  const double row = c.rows(hidden);
  c.cases.push_back(
      {"rms_norm_forward", 4 * row, [&c, tokens, hidden](std::uint64_t seed) {
         const at::Tensor x = c.normal({tokens, hidden}, seed), other = c.normal({tokens, hidden}, seed + 1);
         const at::Tensor weight = c.normal({hidden}, seed + 2);
         return [=] { ops::rms_norm_forward(x, other, weight, 1e-5); };
       }});
  c.cases.push_back({"rms_norm_apply", 2 * row, [&c, tokens, hidden](std::uint64_t seed) {
                       const at::Tensor x = c.normal({tokens, hidden}, seed), weight = c.normal({hidden}, seed + 1);
                       const at::Tensor rstd = c.normal({tokens}, c.wide(), seed + 2);
                       return [=] { ops::rms_norm_apply(x, rstd, weight); };
                     }});
  c.cases.push_back(
      {"rms_norm_backward", 4 * row, [&c, tokens, hidden](std::uint64_t seed) {
         const at::Tensor dy = c.normal({tokens, hidden}, seed), dsum = c.normal({tokens, hidden}, seed + 1);
         const at::Tensor sum = c.normal({tokens, hidden}, seed + 2), weight = c.normal({hidden}, seed + 3);
         const at::Tensor rstd = c.normal({tokens}, c.wide(), seed + 4);
         at::Tensor dweight = c.empty({hidden}, c.wide());
         return [=]() mutable { ops::rms_norm_backward(dy, dsum, sum, rstd, weight, dweight, false); };
       }});
}

void add_norms_with_dropout(Cases& c) {
  const std::int64_t tokens = c.bench().tokens, hidden = c.bench().hidden;
  const double row = c.rows(hidden);
  const auto dropout = [](const at::Tensor& step) {
    return ops::Dropout{.probability = 0.1, .step = step.const_data_ptr<std::int64_t>()};
  };
  c.cases.push_back(
      {"rms_norm_forward_dropout", 4 * row, [=, &c](std::uint64_t seed) {
         const at::Tensor x = c.normal({tokens, hidden}, seed), other = c.normal({tokens, hidden}, seed + 1);
         const at::Tensor weight = c.normal({hidden}, seed + 2), step = c.empty({1}, quant::DType::i64);
         return [=] { ops::rms_norm_forward(x, other, weight, 1e-5, dropout(step)); };
       }});
  c.cases.push_back(
      {"rms_norm_backward_dropout", 5 * row, [=, &c](std::uint64_t seed) {
         const at::Tensor dy = c.normal({tokens, hidden}, seed), dsum = c.normal({tokens, hidden}, seed + 1);
         const at::Tensor sum = c.normal({tokens, hidden}, seed + 2), weight = c.normal({hidden}, seed + 3);
         const at::Tensor rstd = c.normal({tokens}, c.wide(), seed + 4), step = c.empty({1}, quant::DType::i64);
         at::Tensor dweight = c.empty({hidden}, c.wide());
         return [=]() mutable { ops::rms_norm_backward(dy, dsum, sum, rstd, weight, dweight, false, dropout(step)); };
       }});
}

// Norms whose x or dy is the sum of two parts, the products of two ranks.
void add_norms_of_parts(Cases& c) {
  const std::int64_t tokens = c.bench().tokens, hidden = c.bench().hidden;
  const double row = c.rows(hidden);
  const auto parts_of = [=, &c](std::uint64_t seed) {
    return std::vector<at::Tensor>{c.normal({tokens, hidden}, seed), c.normal({tokens, hidden}, seed + 1)};
  };
  c.cases.push_back({"rms_norm_forward_parts", 5 * row, [=, &c](std::uint64_t seed) {
                       const std::vector<at::Tensor> x = parts_of(seed);
                       const at::Tensor other = c.normal({tokens, hidden}, seed + 2);
                       const at::Tensor weight = c.normal({hidden}, seed + 3);
                       return [=] { ops::rms_norm_forward(x, other, weight, 1e-5); };
                     }});
  c.cases.push_back({"rms_norm_backward_parts", 5 * row, [=, &c](std::uint64_t seed) {
                       const std::vector<at::Tensor> dy = parts_of(seed);
                       const at::Tensor dsum = c.normal({tokens, hidden}, seed + 2);
                       const at::Tensor sum = c.normal({tokens, hidden}, seed + 3);
                       const at::Tensor weight = c.normal({hidden}, seed + 4);
                       const at::Tensor rstd = c.normal({tokens}, c.wide(), seed + 5);
                       at::Tensor dweight = c.empty({hidden}, c.wide());
                       return [=]() mutable { ops::rms_norm_backward(dy, dsum, sum, rstd, weight, dweight, false); };
                     }});
}

void add_rope_and_swiglu(Cases& c) {
  const KernelBench& b = c.bench();
  const std::int64_t tokens = b.tokens, width = (b.q_heads + 2 * b.kv_heads) * b.head_dim, ffn = b.ffn;
  const auto table = std::make_shared<ops::RopeTable>(
      ops::make_rope_table(tokens, b.head_dim, 5e5, {}, ops::to_scalar_type(b.type), c.device()));
  const at::Tensor order = at::Tensor(ops::make({tokens}, at::kLong));
  for (std::int64_t i = 0; i < tokens; ++i) order.mutable_data_ptr<std::int64_t>()[i] = i;
  const at::Tensor positions = order.to(c.device());
  c.cases.push_back({"split_rope_forward", 2 * c.rows(width), [=, &c, &b](std::uint64_t seed) {
                       const at::Tensor qkv = c.normal({tokens, width}, seed);
                       return [=, &b] {
                         ops::split_rope_forward(qkv, positions, *table, b.q_heads, b.kv_heads, b.head_dim);
                       };
                     }});
  c.cases.push_back({"split_rope_backward", 2 * c.rows(width), [=, &c, &b](std::uint64_t seed) {
                       const ops::Qkv parts = normal_heads(c, seed);
                       return [=] { ops::split_rope_backward(parts, positions, *table); };
                     }});
  const auto normed = [=, &c, &b](std::uint64_t seed) {
    return ops::HeadNormRope{.qkv = c.normal({tokens, width}, seed),
                             .positions = positions,
                             .heads = {.q_heads = b.q_heads, .kv_heads = b.kv_heads, .head_dim = b.head_dim},
                             .q = {.weight = c.normal({b.head_dim}, seed + 1), .eps = 1e-6},
                             .k = {.weight = c.normal({b.head_dim}, seed + 2), .eps = 1e-6},
                             .rope = *table};
  };
  const double heads_bytes = c.rows((b.q_heads + b.kv_heads) * b.head_dim);
  c.cases.push_back({"head_norm_rope_forward", 2 * heads_bytes, [=](std::uint64_t seed) {
                       const ops::HeadNormRope call = normed(seed);
                       return [=] { ops::head_norm_rope_forward(call); };
                     }});
  c.cases.push_back({"head_norm_rope_backward", 2 * c.rows(width) + heads_bytes, [=, &c, &b](std::uint64_t seed) {
                       const ops::HeadNormRope call = normed(seed);
                       const at::Tensor rstd = ops::head_norm_rope_forward(call).rstd;
                       const ops::Qkv gradient = normal_heads(c, seed + 3);
                       return [=] { ops::head_norm_rope_backward(call, rstd, gradient); };
                     }});
  c.cases.push_back({"swiglu_forward", 3 * c.rows(ffn), [=, &c](std::uint64_t seed) {
                       const at::Tensor gate_up = c.normal({tokens, 2 * ffn}, seed);
                       return [=] { ops::swiglu_forward(gate_up); };
                     }});
  c.cases.push_back(
      {"swiglu_backward", 5 * c.rows(ffn), [=, &c](std::uint64_t seed) {
         const at::Tensor gate_up = c.normal({tokens, 2 * ffn}, seed), dout = c.normal({tokens, ffn}, seed + 1);
         return [=] { ops::swiglu_backward(dout, gate_up); };
       }});
  c.cases.push_back(
      {"swiglu_backward_again", 6 * c.rows(ffn), [=, &c](std::uint64_t seed) {
         const at::Tensor gate_up = c.normal({tokens, 2 * ffn}, seed), dout = c.normal({tokens, ffn}, seed + 1);
         return [=] { ops::swiglu_backward_with_output(dout, gate_up); };
       }});
}

void add_cross_entropy(Cases& c) {
  const std::int64_t tokens = c.bench().tokens, vocabulary = c.bench().vocabulary;
  const double row = c.rows(vocabulary);
  c.cases.push_back({"cross_entropy_maximum", row, [=, &c](std::uint64_t seed) {
                       const at::Tensor logits = c.normal({tokens, vocabulary}, seed);
                       return [=] { ops::cross_entropy_maximum(logits); };
                     }});
  c.cases.push_back({"cross_entropy_sums", row, [=, &c](std::uint64_t seed) {
                       const at::Tensor logits = c.normal({tokens, vocabulary}, seed), targets = c.ids(seed);
                       const at::Tensor maximum = ops::cross_entropy_maximum(logits);
                       return [=] {
                         ops::cross_entropy_sums(logits, maximum, targets, ops::one_range(0, logits.size(1)));
                       };
                     }});
  c.cases.push_back(
      {"cross_entropy_finish", 2 * row, [=, &c](std::uint64_t seed) {
         at::Tensor logits = c.normal({tokens, vocabulary}, seed);
         const at::Tensor targets = c.ids(seed), maximum = ops::cross_entropy_maximum(logits);
         const at::Tensor sums = ops::cross_entropy_sums(logits, maximum, targets, ops::one_range(0, logits.size(1)));
         return [=]() mutable {
           ops::cross_entropy_finish(logits, maximum, sums, targets, ops::one_range(0, logits.size(1)), 1e-3);
         };
       }});
}

void add_embedding(Cases& c) {
  const std::int64_t tokens = c.bench().tokens, hidden = c.bench().hidden, vocabulary = c.bench().vocabulary;
  const double row = c.rows(hidden), dweight_bytes = static_cast<double>(vocabulary * hidden) * c.size(c.wide());
  c.cases.push_back({"embedding_forward", 2 * row, [=, &c](std::uint64_t seed) {
                       const at::Tensor weight = c.normal({vocabulary, hidden}, seed), ids = c.ids(seed);
                       return [=] { ops::embedding_forward(ids, weight, ops::one_range(0, weight.size(0))); };
                     }});
  c.cases.push_back({"embedding_backward", row + dweight_bytes, [=, &c](std::uint64_t seed) {
                       const at::Tensor dy = c.normal({tokens, hidden}, seed), ids = c.ids(seed);
                       at::Tensor dweight = c.empty({vocabulary, hidden}, c.wide());
                       return [=]() mutable {
                         ops::embedding_backward(dy, ids, dweight, ops::one_range(0, dweight.size(0)), false);
                       };
                     }});
}

struct AdamWTypes {
  DType gradient = DType::fp32, moments = DType::fp32;
  bool is_split = false;
};

// Returns a call of AdamW for one shard. A split master is in bf16 memory.
std::function<void()> adamw_call(const Cases& c, const AdamWTypes& types, std::uint64_t seed) {
  const std::int64_t count = c.bench().parameters;
  const at::Tensor master = c.normal({count}, types.is_split ? DType::bf16 : c.wide(), seed),
                   weight = c.normal({count}, seed + 1), gradient = c.normal({count}, types.gradient, seed + 2),
                   exp_avg = c.normal({count}, types.moments, seed + 3),
                   exp_avg_sq = c.normal({count}, types.moments, seed + 4).abs_();
  const ops::UpdateShard shard{.master = master.data_ptr(),
                               .master_type = c.wide(),
                               .weight = c.bench().type == c.wide() ? master.data_ptr() : weight.data_ptr(),
                               .weight_type = c.bench().type,
                               .is_split = types.is_split,
                               .gradient = gradient.data_ptr(),
                               .gradient_type = types.gradient,
                               .planes = {exp_avg.data_ptr(), exp_avg_sq.data_ptr()},
                               .count = count,
                               .rounding_key = ops::state_rounding_key(seed, "w")};
  const bool is_rounded = types.moments != c.wide();
  ops::StepScalars scalars = ops::step_scalars({.weight_decay = 0.1}, /*lr=*/1e-4, /*number=*/10);
  const std::vector<at::Tensor> owners = {master, weight, gradient, exp_avg, exp_avg_sq};
  if (!c.bench().cuda) return [owners, scalars, shard, is_rounded] { ops::adamw(scalars, shard, {}, is_rounded); };
  const at::Tensor on_device = ops::view_of(&scalars, {sizeof scalars}, DType::u8).to(c.device());
  return [owners, shard, on_device, is_rounded] {
    base::cuda_only<ops::cuda::adamw>({&shard, 1}, static_cast<const ops::StepScalars*>(on_device.data_ptr()), nullptr,
                                      ops::stream_of(on_device), is_rounded);
  };
}

void add_optimizer(Cases& c) {
  const std::int64_t count = c.bench().parameters, hidden = c.bench().hidden,
                     rows = std::max<std::int64_t>(1, count / hidden);
  const DType type = c.bench().type, wide = c.wide();
  const auto add_adamw = [&](const AdamWTypes& types) {
    const double master = types.is_split ? 2 * c.size(type) : 2 * c.size(wide),
                 weight = type == wide ? 0 : (types.is_split ? 2 : 1) * c.size(type);
    c.cases.push_back(
        {fmt::format("adamw_{}_gradient{}{}", name_of(types.gradient),
                     types.moments == wide ? "" : fmt::format("_{}_moments", name_of(types.moments)),
                     types.is_split ? "_split_master" : ""),
         static_cast<double>(count) * (master + weight + 4 * c.size(types.moments) + c.size(types.gradient)),
         [&c, types](std::uint64_t seed) { return adamw_call(c, types, seed); }});
  };
  if (type == DType::bf16)
    for (const DType gradient : {wide, DType::bf16})
      for (const DType moments : {wide, DType::bf16})
        for (const bool is_split : {false, true})
          add_adamw({.gradient = gradient, .moments = moments, .is_split = is_split});
  else
    add_adamw({.gradient = wide, .moments = wide});
  c.cases.push_back(
      {"row_square_sums", static_cast<double>(rows * hidden) * c.size(wide), [=, &c](std::uint64_t seed) {
         const at::Tensor values = c.normal({rows, hidden}, wide, seed), sums = c.empty({rows}, DType::fp64);
         return [=, cuda = c.bench().cuda] {
           double* to = sums.data_ptr<double>();
           if (cuda)
             base::cuda_only<ops::cuda::row_square_sums>(values.data_ptr(), wide, rows, hidden, hidden, to,
                                                         ops::stream_of(values), /*states=*/nullptr);
           else
             ops::row_square_sums(values.data_ptr(), wide, rows, hidden, hidden, to);
         };
       }});
  c.cases.push_back({"fill_normal", static_cast<double>(count) * c.size(type), [=, &c](std::uint64_t seed) {
                       const at::Tensor values = c.empty({count}, type);
                       return [=, &c] { c.fill(values, seed); };
                     }});
}

// Adds the sums that the owner of a gradient computes from the parts of all ranks.
void add_sums(Cases& c) {
  constexpr int part_count = 4;
  const std::int64_t cols = c.bench().hidden, rows = std::max<std::int64_t>(1, c.bench().parameters / cols);
  const DType type = c.bench().type, wide = c.wide();
  const double bytes = static_cast<double>(rows * cols) * (part_count * c.size(type) + 2 * c.size(wide));
  for (const bool with_squares : {false, true})
    c.cases.push_back({with_squares ? "ordered_sum_squares" : "ordered_sum", bytes, [=, &c](std::uint64_t seed) {
                         const at::Tensor sum = c.normal({rows, cols}, wide, seed);
                         const at::Tensor parts = c.normal({part_count, rows, cols}, seed + 1);
                         const at::Tensor squares = c.empty({rows}, DType::fp64);
                         const std::shared_ptr<const quant::Kernels> kernels = c.comm_kernels(sum);
                         std::vector<const void*> pointers;
                         for (int part = 0; part < part_count; ++part) pointers.push_back(parts[part].data_ptr());
                         return [=, owner = parts] {
                           if (with_squares)
                             kernels->ordered_sum_squares(sum.data_ptr(), wide, true, pointers, type, rows, cols,
                                                          squares.data_ptr<double>());
                           else
                             kernels->ordered_sum(sum.data_ptr(), wide, true, pointers, type, rows * cols);
                         };
                       }});
}

void add_flat(Cases& c) {
  const std::int64_t count = c.bench().parameters;
  const DType type = c.bench().type, wide = c.wide();
  if (type != wide)
    c.cases.push_back({"cast", static_cast<double>(count) * (c.size(type) + c.size(wide)), [=, &c](std::uint64_t seed) {
                         const at::Tensor values = c.normal({count}, wide, seed);
                         return [=] { ops::rounded_to(values, ops::to_scalar_type(type)); };
                       }});
  c.cases.push_back({"add", 3 * static_cast<double>(count) * c.size(wide), [=, &c](std::uint64_t seed) {
                       at::Tensor sum = c.normal({count}, wide, seed);
                       const at::Tensor term = c.normal({count}, wide, seed + 1);
                       return [=]() mutable { ops::add_to(sum, term); };
                     }});
}

}  // namespace

std::vector<KernelCase> kernel_cases(const KernelBench& bench, std::int64_t copy_bytes) {
  const auto shared = std::make_shared<Cases>(bench);
  Cases& c = *shared;
  c.cases.push_back({"copy", 2 * static_cast<double>(copy_bytes), [&c, copy_bytes](std::uint64_t seed) {
                       const at::Tensor from = c.normal({copy_bytes / 4}, DType::fp32, seed);
                       return [from, to = from.clone()]() mutable { to.copy_(from); };
                     }});
  add_products(c);
  add_attention(c);
  add_norms(c);
  add_norms_with_dropout(c);
  add_norms_of_parts(c);
  add_rope_and_swiglu(c);
  add_experts(c);
  add_cross_entropy(c);
  add_embedding(c);
  add_optimizer(c);
  add_sums(c);
  add_flat(c);
  for (KernelCase& one : c.cases)  // the calls keep the shared objects alive
    one.prepare = [shared, prepare = one.prepare](std::uint64_t seed) { return prepare(seed); };
  return std::move(c.cases);
}

}  // namespace tessera::bench
