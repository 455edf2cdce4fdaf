#include "tessera/ops/attention/attention.h"

#include <ATen/Context.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>

#include <cstdlib>

#include "tessera/base/error.h"
#include "tessera/ops/aten_types.h"
#include "tessera/ops/attention/attention_device.h"
#include "tessera/ops/attention/attention_kernels.h"
#include "tessera/ops/attention/attention_spans.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {
namespace {

// ATen multiplies head by head, so the addresses that MKL receives depend on the index and the width of a head. MKL's
// strict mode is documented to give the same bits for every alignment; without a mode the bits differ on some CPUs. A
// mode that the user has set is kept. MKL reads the variable at its first call, which is after the start of main().
bool make_products_strict() {
  const char* mode = std::getenv("MKL_CBWR");
  return (mode != nullptr && *mode != '\0') || setenv("MKL_CBWR", "AUTO,STRICT", /*overwrite=*/1) == 0;
}
[[maybe_unused]] const bool kProductsAreStrict = make_products_strict();

void check_documents(const AttentionShape& shape) {
  const auto& starts = shape.cu_seqlens;
  if (starts.empty()) return;
  const std::int64_t tokens = shape.batch * shape.seq_len;
  TESSERA_CHECK(starts.front() == 0 && starts.back() == tokens,
                "attention: cu_seqlens begins with {} and ends with {}, expected 0 and {}", starts.front(),
                starts.back(), tokens);
  for (std::size_t i = 0; i + 1 < starts.size(); ++i) {
    TESSERA_CHECK(starts[i] < starts[i + 1],
                  "attention: cu_seqlens[{}] is {} and the next is {}: expected increasing values", i, starts[i],
                  starts[i + 1]);
    TESSERA_CHECK(starts[i] / shape.seq_len == (starts[i + 1] - 1) / shape.seq_len,
                  "attention: the document from {} to {} crosses the end of a sequence (seq_len {})", starts[i],
                  starts[i + 1], shape.seq_len);
  }
}

void check(const Qkv& qkv, const AttentionShape& shape) {
  TESSERA_CHECK(qkv.q.defined() && qkv.q.dim() == 3, "attention q: expected [tokens, heads, head_dim]");
  TESSERA_CHECK(qkv.k.defined() && qkv.k.dim() == 3, "attention k: expected [tokens, heads, head_dim]");
  TESSERA_CHECK(shape.batch >= 0 && shape.seq_len >= 0 && qkv.q.size(0) == shape.batch * shape.seq_len,
                "attention q: {} tokens, expected batch {} * seq_len {}", qkv.q.size(0), shape.batch, shape.seq_len);
  TESSERA_CHECK(static_cast<std::int64_t>(shape.kv_of_q.size()) == qkv.q.size(1),
                "attention: kv_of_q has {} entries for {} query heads", shape.kv_of_q.size(), qkv.q.size(1));
  for (std::size_t head = 0; head < shape.kv_of_q.size(); ++head) {
    const int stored = shape.kv_of_q[head];
    TESSERA_CHECK(stored >= 0 && stored < qkv.k.size(1),
                  "attention: kv_of_q[{}] is {}, expected an index of one of {} key/value heads", head, stored,
                  qkv.k.size(1));
  }
  TESSERA_CHECK(qkv.k.size(0) == qkv.q.size(0) && qkv.k.size(2) == qkv.q.size(2),
                "attention k: {} tokens, head_dim {}: expected {} and {}", qkv.k.size(0), qkv.k.size(2), qkv.q.size(0),
                qkv.q.size(2));
  require_one_device({qkv.q, qkv.k, qkv.v}, "attention");
  check_documents(shape);
}

// Returns true if there are `heads` query heads and query head h reads stored head h.
bool is_identity(std::span<const int> map, std::int64_t heads) {
  for (std::size_t head = 0; head < map.size(); ++head)
    if (map[head] != static_cast<int>(head)) return false;
  return static_cast<std::int64_t>(map.size()) == heads;
}

// Returns `tensor` with one head per query head, in the accumulator type.
at::Tensor expanded(const at::Tensor& tensor, std::span<const int> map) {
  const at::ScalarType type = accumulator_type(tensor.scalar_type());
  if (is_identity(map, tensor.size(1))) return rounded_to(tensor, type);
  at::Tensor result = make({tensor.size(0), static_cast<std::int64_t>(map.size()), tensor.size(2)}, type);
  cpu::expand_heads({.type = to_dtype(tensor.scalar_type()),
                     .tokens = tensor.size(0),
                     .heads = tensor.size(1),
                     .head_dim = tensor.size(2),
                     .map = map,
                     .from = tensor.const_data_ptr(),
                     .to = result.mutable_data_ptr()});
  return result;
}

// The gradient of expanded(): sums over the query heads of each stored head, in order, and rounds once.
at::Tensor reduced(const at::Tensor& gradient, std::span<const int> map, std::int64_t heads, at::ScalarType type) {
  if (is_identity(map, heads)) return rounded_to(gradient, type);
  at::Tensor result = make({gradient.size(0), heads, gradient.size(2)}, type);
  cpu::reduce_heads({.type = to_dtype(type),
                     .tokens = gradient.size(0),
                     .heads = heads,
                     .head_dim = gradient.size(2),
                     .map = map,
                     .from = gradient.const_data_ptr(),
                     .to = result.mutable_data_ptr()});
  return result;
}

// The inputs of ATen's kernel: q, k and v in the accumulator type, with one key/value head per query head.
struct AttentionOperands {
  at::Tensor q, k, v;
};
AttentionOperands operands_of(const Qkv& qkv, const AttentionShape& shape) {
  const at::ScalarType type = qkv.q.scalar_type();
  const at::IntArrayRef kv_shape = qkv.k.sizes();
  return {.q = rounded_to(dense(qkv.q, 3, "attention q"), accumulator_type(type)),
          .k = expanded(dense_like(qkv.k, kv_shape, type, "attention k"), shape.kv_of_q),
          .v = expanded(dense_like(qkv.v, kv_shape, type, "attention v"), shape.kv_of_q)};
}

// Calls visit(head, offset in bytes) for each query head of each sequence that has non-finite values. For some of these
// heads, libtorch's kernel loses NaN and infinities: its softmax drops NaN in rows shorter than a vector, and infinite
// scores at any length.
template <typename Visit>
void for_each_not_finite(const AttentionOperands& operands, const at::Tensor* dout, const std::vector<Span>& spans,
                         double scale, Visit&& visit) {
  const std::int64_t heads = operands.q.size(1), head_dim = operands.q.size(2);
  const std::int64_t size = static_cast<std::int64_t>(operands.q.element_size());
  for (const Span& span : spans) {
    for (std::int64_t i = 0; i < span.sequences * heads; ++i) {
      const std::int64_t first = ((span.begin + i / heads * span.length) * heads + i % heads) * head_dim * size;
      const auto from = [&](const at::Tensor& tensor) {
        return static_cast<const std::byte*>(tensor.const_data_ptr()) + first;
      };
      const PlainArguments head{.type = to_dtype(operands.q.scalar_type()),
                                .length = span.length,
                                .stride = heads * head_dim,
                                .head_dim = head_dim,
                                .scale = scale,
                                .q = from(operands.q),
                                .k = from(operands.k),
                                .v = from(operands.v),
                                .dout = dout == nullptr ? nullptr : from(*dout)};
      if (!cpu::is_finite(head)) visit(head, first);
    }
  }
}
void* at_byte(at::Tensor& tensor, std::int64_t offset) {
  return static_cast<std::byte*>(tensor.mutable_data_ptr()) + offset;
}

// Causal attention needs half of two products of seq_len x seq_len x head_dim per head; backward has five products.
void report_attention(const Qkv& qkv, const AttentionShape& shape, bool backward) {
  const auto tokens = static_cast<double>(qkv.q.size(0)), width = static_cast<double>(qkv.q.size(1) * qkv.q.size(2));
  const double flops = 2 * tokens * static_cast<double>(shape.seq_len) * width;
  report({.name = backward ? "attention backward" : "attention",
          .kind = backward ? WorkKind::attention_backward : WorkKind::attention_forward,
          .flops = backward ? 2.5 * flops : flops,
          .bytes = static_cast<double>((backward ? 2 : 1) * bytes_of({qkv.q, qkv.q, qkv.k, qkv.v})),
          .sizes = {.batch = shape.batch,
                    .seq_len = shape.seq_len,
                    .q_heads = qkv.q.size(1),
                    .kv_heads = qkv.k.size(1),
                    .head_dim = qkv.q.size(2)}});
}

Attention forward_dry(const Qkv& qkv, const AttentionShape& shape) {
  report_attention(qkv, shape, /*backward=*/false);
  const at::Tensor& q = qkv.q;
  return {.out = make({q.size(0), q.size(1) * q.size(2)}, q.scalar_type(), q.device()),
          .softmax = {make({q.size(0), q.size(1)}, accumulator_type(q.scalar_type()), q.device())}};
}

// Without queries no gradient reaches the keys and values.
Qkv no_gradient(const Qkv& qkv) {
  return {.q = make(qkv.q.sizes(), qkv.q.scalar_type(), qkv.q.device()).zero_(),
          .k = make(qkv.k.sizes(), qkv.k.scalar_type(), qkv.q.device()).zero_(),
          .v = make(qkv.k.sizes(), qkv.k.scalar_type(), qkv.q.device()).zero_()};
}

}  // namespace

// ATen stores the setting, because its own operators read it too. Uninitialised memory is not filled, because no
// operator reads it.
void set_deterministic(bool on) {
  at::globalContext().setDeterministicAlgorithms(on, /*warn_only=*/false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
}

std::vector<Span> spans_of(const AttentionShape& shape) {
  const std::int64_t tokens = shape.batch * shape.seq_len;
  if (tokens == 0) return {};
  if (shape.cu_seqlens.empty()) return {{.begin = 0, .sequences = shape.batch, .length = shape.seq_len}};
  std::vector<Span> spans;
  const auto& starts = shape.cu_seqlens;
  for (std::size_t i = 0; i + 1 < starts.size(); ++i)
    spans.push_back({.begin = starts[i], .sequences = 1, .length = starts[i + 1] - starts[i]});
  return spans;
}

at::Tensor part(const at::Tensor& tensor, const Span& span) {
  return tensor.narrow(0, span.begin, span.sequences * span.length)
      .view({span.sequences, span.length, tensor.size(1), tensor.size(2)})
      .transpose(1, 2);
}

// A single span is not copied, because ATen's results are already stored token by token.
at::Tensor joined(const std::vector<at::Tensor>& parts, const std::vector<Span>& spans, const at::Tensor& like) {
  if (parts.size() == 1) return parts[0].transpose(1, 2).contiguous().view(like.sizes());
  at::Tensor whole = make(like.sizes(), like.scalar_type(), like.device());
  for (std::size_t i = 0; i < parts.size(); ++i) part(whole, spans[i]).copy_(parts[i]);
  return whole;
}

Attention attention_forward(const Qkv& qkv, const AttentionShape& shape) {
  check(qkv, shape);
  const std::int64_t flat[] = {qkv.q.size(0), qkv.q.size(1) * qkv.q.size(2)};
  const at::ScalarType type = qkv.q.scalar_type();
  if (qkv.q.numel() == 0) return {.out = make(flat, type, qkv.q.device())};
  if (is_dry(qkv.q)) return forward_dry(qkv, shape);
  if (on_cuda(qkv.q)) return cuda_only<cuda::attention_forward>(qkv, shape);
  const AttentionOperands operands = operands_of(qkv, shape);
  Attention result;
  const std::vector<Span> spans = spans_of(shape);
  std::vector<at::Tensor> out;
  for (const Span& span : spans) {
    auto [values, log_sum_exp] = at::_scaled_dot_product_flash_attention_for_cpu(
        part(operands.q, span), part(operands.k, span), part(operands.v, span), 0.0, true, {}, shape.scale);
    out.push_back(values);
    result.softmax.push_back(log_sum_exp);
  }
  at::Tensor values = joined(out, spans, operands.q);
  for_each_not_finite(operands, nullptr, spans, shape.scale, [&](PlainArguments head, std::int64_t first) {
    head.out = at_byte(values, first);
    cpu::plain_forward(head);
  });
  result.out = rounded_to(values, type).view(flat);
  return result;
}

Qkv attention_backward(const at::Tensor& dout, const Qkv& qkv, const Attention& forward, const AttentionShape& shape) {
  check(qkv, shape);
  if (qkv.q.numel() == 0) return no_gradient(qkv);
  if (is_dry(qkv.q)) {
    report_attention(qkv, shape, /*backward=*/true);
    return no_gradient(qkv);
  }
  if (on_cuda(qkv.q)) return cuda_only<cuda::attention_backward>(dout, qkv, forward, shape);
  const AttentionOperands operands = operands_of(qkv, shape);
  const at::ScalarType type = qkv.q.scalar_type(), accumulator = accumulator_type(type);
  const at::IntArrayRef heads = operands.q.sizes();
  const std::int64_t flat[] = {heads[0], heads[1] * heads[2]};
  const at::Tensor gradient = rounded_to(dense_like(dout, flat, type, "attention dout"), accumulator).view(heads);
  const at::Tensor out = rounded_to(dense_like(forward.out, flat, type, "attention out"), accumulator).view(heads);
  const std::vector<Span> spans = spans_of(shape);
  TESSERA_CHECK(forward.softmax.size() == spans.size(), "attention backward: {} saved softmax tensors for {} spans",
                forward.softmax.size(), spans.size());
  std::vector<at::Tensor> dq, dk, dv;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const Span& span = spans[i];
    auto [q_part, k_part, v_part] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        part(gradient, span), part(operands.q, span), part(operands.k, span), part(operands.v, span), part(out, span),
        forward.softmax[i], 0.0, true, {}, shape.scale);
    dq.push_back(q_part);
    dk.push_back(k_part);
    dv.push_back(v_part);
  }
  Qkv result{joined(dq, spans, operands.q), joined(dk, spans, operands.q), joined(dv, spans, operands.q)};
  for_each_not_finite(operands, &gradient, spans, shape.scale, [&](PlainArguments head, std::int64_t first) {
    head.dq = at_byte(result.q, first);
    head.dk = at_byte(result.k, first);
    head.dv = at_byte(result.v, first);
    cpu::plain_backward(head);
  });
  return {.q = rounded_to(result.q, type),
          .k = reduced(result.k, shape.kv_of_q, qkv.k.size(1), type),
          .v = reduced(result.v, shape.kv_of_q, qkv.k.size(1), type)};
}

}  // namespace tessera::ops
