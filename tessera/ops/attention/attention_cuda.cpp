#include <ATen/Context.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/triu.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>

#include "tessera/base/error.h"
#include "tessera/ops/attention/attention_device.h"
#include "tessera/ops/attention/attention_spans.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops::cuda {
namespace {

enum class Backend { cudnn, flash, products };
Backend backend_of(const Qkv& qkv, const AttentionShape& shape) {
  const std::int64_t head_dim = qkv.q.size(2);
  if (qkv.q.scalar_type() != at::kBFloat16 || head_dim % 8 != 0 || head_dim > kLargestHead) return Backend::products;
  if (shape.seq_len < 2) return Backend::products;  // cuDNN does not accept sequences of one token
  const bool whole = shape.cu_seqlens.empty() && !at::globalContext().deterministicAlgorithms();
  return whole ? Backend::cudnn : Backend::flash;
}

// Sums over the query heads of each stored head, in order, in the accumulator type, and rounds once.
at::Tensor reduced(const at::Tensor& gradient, const AttentionShape& shape, const at::Tensor& like) {
  at::Tensor sum = at::zeros(like.sizes(), gradient.options().dtype(accumulator_type(like.scalar_type())));
  for (std::size_t head = 0; head < shape.kv_of_q.size(); ++head)
    sum.select(1, shape.kv_of_q[head]).add_(gradient.select(1, static_cast<std::int64_t>(head)));
  return rounded_to(sum, like.scalar_type());
}

constexpr std::uint64_t kHeadAlignment = 16;  // bytes

// k and v in the layout that the kernels read.
struct Keys {
  at::Tensor k, v;
  bool are_expanded = false;
};
// Returns the heads of each token side by side. The kernels accept any stride from token to token, if the heads are
// aligned.
at::Tensor adjacent_heads(const at::Tensor& v) {
  const bool adjacent = v.stride(2) == 1 && v.stride(1) == v.size(2);
  const bool aligned = reinterpret_cast<std::uintptr_t>(v.const_data_ptr()) % kHeadAlignment == 0 &&
                       v.stride(0) * v.element_size() % kHeadAlignment == 0;
  return adjacent && aligned ? v : v.contiguous();
}
Keys keys_of(const Qkv& qkv, const AttentionShape& shape) {
  if (is_regular(shape.kv_of_q, qkv.k.size(1))) return {dense(qkv.k, 3, "attention k"), adjacent_heads(qkv.v)};
  return {expanded(qkv.k, shape.kv_of_q), expanded(qkv.v, shape.kv_of_q), true};
}
Qkv gradient_of(const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& dv, const Keys& keys, const Qkv& qkv,
                const AttentionShape& shape) {
  if (!keys.are_expanded) return {dq.contiguous(), dk.contiguous(), dv.contiguous()};
  return {dq.contiguous(), reduced(dk, shape, qkv.k), reduced(dv, shape, qkv.v)};
}

// Converts [tokens, heads, head_dim] to [batch, heads, seq_len, head_dim] and back, without a copy.
at::Tensor batched(const at::Tensor& tensor, const AttentionShape& shape) {
  return tensor.view({shape.batch, shape.seq_len, tensor.size(1), tensor.size(2)}).transpose(1, 2);
}
at::Tensor by_token(const at::Tensor& tensor) {
  return tensor.transpose(1, 2).reshape({-1, tensor.size(1), tensor.size(3)});
}

// The starts of documents for flash attention. Without documents each sequence is one document.
struct Documents {
  at::Tensor starts;  // int32 offsets on the device
  std::int64_t longest = 0;
};
Documents documents_of(const AttentionShape& shape, at::Device device) {
  // Computed on the device, because a captured step must not copy from the host.
  if (shape.cu_seqlens.empty()) {
    const std::int64_t end = (shape.batch + 1) * shape.seq_len;
    return {at::arange(0, end, std::max<std::int64_t>(shape.seq_len, 1), at::TensorOptions(device).dtype(at::kInt)),
            shape.seq_len};
  }
  Documents documents;
  const std::vector<std::int64_t>& starts = shape.cu_seqlens;
  const at::Tensor host = at::empty({static_cast<std::int64_t>(starts.size())}, at::kInt);
  for (std::size_t i = 0; i < starts.size(); ++i) {
    host.mutable_data_ptr<int>()[i] = static_cast<int>(starts[i]);
    if (i > 0) documents.longest = std::max(documents.longest, starts[i] - starts[i - 1]);
  }
  documents.starts = host.pin_memory().to(device, /*non_blocking=*/true);
  return documents;
}

at::Tensor causal_mask(std::int64_t length, const at::TensorOptions& options) {
  return at::triu(at::full({length, length}, -std::numeric_limits<double>::infinity(), options), 1);
}

// Returns a span as one matrix per sequence and head: [sequences * heads, length, head_dim] in the accumulator type.
at::Tensor matrices(const at::Tensor& tensor, const Span& span, at::ScalarType type) {
  const at::Tensor whole = part(tensor, span).to(type);
  return whole.reshape({-1, span.length, tensor.size(2)});
}
at::Tensor probabilities(const at::Tensor& q, const at::Tensor& k, const at::Tensor& log_sum, double scale) {
  at::Tensor scores = at::bmm(q, k.transpose(1, 2)).mul_(scale);
  scores.add_(causal_mask(q.size(1), q.options()));
  return scores.sub_(log_sum.unsqueeze(-1)).exp_();
}

Attention products_forward(const Qkv& qkv, const AttentionShape& shape) {
  const at::ScalarType type = accumulator_type(qkv.q.scalar_type());
  const at::Tensor all_k = expanded(qkv.k, shape.kv_of_q), all_v = expanded(qkv.v, shape.kv_of_q);
  const std::vector<Span> spans = spans_of(shape);
  Attention result;
  std::vector<at::Tensor> parts;
  for (const Span& span : spans) {
    const at::Tensor q = matrices(qkv.q, span, type), k = matrices(all_k, span, type), v = matrices(all_v, span, type);
    at::Tensor scores = at::bmm(q, k.transpose(1, 2)).mul_(shape.scale);
    scores.add_(causal_mask(span.length, q.options()));
    result.softmax.push_back(at::logsumexp(scores, {-1}));
    const at::Tensor out = at::bmm(probabilities(q, k, result.softmax.back(), shape.scale), v);
    parts.push_back(out.view({span.sequences, qkv.q.size(1), span.length, qkv.q.size(2)}).to(qkv.q.scalar_type()));
  }
  result.out = joined(parts, spans, qkv.q);
  return result;
}

Qkv products_backward(const at::Tensor& dout, const Qkv& qkv, const Attention& forward, const AttentionShape& shape) {
  const at::ScalarType type = accumulator_type(qkv.q.scalar_type());
  const Keys keys{expanded(qkv.k, shape.kv_of_q), expanded(qkv.v, shape.kv_of_q), true};
  const std::vector<Span> spans = spans_of(shape);
  const at::Tensor all_out = forward.out.view(qkv.q.sizes());
  std::vector<at::Tensor> dq, dk, dv;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const Span& span = spans[i];
    const at::Tensor q = matrices(qkv.q, span, type), k = matrices(keys.k, span, type),
                     v = matrices(keys.v, span, type), out = matrices(all_out, span, type),
                     gradient = matrices(dout, span, type);
    const at::Tensor p = probabilities(q, k, forward.softmax[i], shape.scale);
    at::Tensor ds =
        at::bmm(gradient, v.transpose(1, 2)).sub_(gradient.mul(out).sum(-1, true)).mul_(p).mul_(shape.scale);
    const auto shaped = [&](const at::Tensor& matrix) {
      return matrix.view({span.sequences, qkv.q.size(1), span.length, qkv.q.size(2)});
    };
    dq.push_back(shaped(at::bmm(ds, k)));
    dk.push_back(shaped(at::bmm(ds.transpose(1, 2), q)));
    dv.push_back(shaped(at::bmm(p.transpose(1, 2), gradient)));
  }
  const at::Tensor like = at::empty(qkv.q.sizes(), qkv.q.options().dtype(type));
  return gradient_of(rounded_to(joined(dq, spans, like), qkv.q.scalar_type()), joined(dk, spans, like),
                     joined(dv, spans, like), keys, qkv, shape);
}

}  // namespace

bool is_regular(const std::vector<int>& kv_of_q, std::int64_t kv_heads) {
  const auto q_heads = static_cast<std::int64_t>(kv_of_q.size());
  if (kv_heads == 0 || q_heads % kv_heads != 0) return false;
  for (std::int64_t head = 0; head < q_heads; ++head)
    if (kv_of_q[static_cast<std::size_t>(head)] != head / (q_heads / kv_heads)) return false;
  return true;
}

at::Tensor expanded(const at::Tensor& tensor, const std::vector<int>& kv_of_q) {
  std::vector<at::Tensor> heads;
  heads.reserve(kv_of_q.size());
  for (const int head : kv_of_q) heads.push_back(tensor.narrow(1, head, 1));
  return heads.empty() ? tensor.narrow(1, 0, 0) : at::cat(heads, 1);
}

Attention attention_forward(const Qkv& qkv, const AttentionShape& shape) {
  const std::int64_t flat[] = {qkv.q.size(0), qkv.q.size(1) * qkv.q.size(2)};
  const Backend backend = backend_of(qkv, shape);
  Attention result;
  if (backend == Backend::products) {
    result = products_forward(qkv, shape);
  } else {
    const at::Tensor q = dense(qkv.q, 3, "attention q");
    const Keys keys = keys_of(qkv, shape);
    if (backend == Backend::cudnn) {
      auto [out, log_sum, sq, sk, mq, mk, seed, offset, mask] = at::_scaled_dot_product_cudnn_attention(
          batched(q, shape), batched(keys.k, shape), batched(keys.v, shape), std::nullopt, /*compute_log_sumexp=*/true,
          /*dropout_p=*/0.0, /*is_causal=*/true, /*return_debug_mask=*/false, shape.scale);
      result = {by_token(out), {log_sum}};
    } else {
      const Documents documents = documents_of(shape, q.device());
      auto [out, log_sum, seed, offset, mask] =
          at::_flash_attention_forward(q, keys.k, keys.v, documents.starts, documents.starts, documents.longest,
                                       documents.longest, 0.0, /*is_causal=*/true, false, shape.scale);
      result = {out, {log_sum}};
    }
  }
  result.out = result.out.contiguous().view(flat);
  return result;
}

Qkv attention_backward(const at::Tensor& dout, const Qkv& qkv, const Attention& forward, const AttentionShape& shape) {
  const at::Tensor gradient = dout.contiguous().view(qkv.q.sizes());
  const Backend backend = backend_of(qkv, shape);
  if (backend == Backend::products) return products_backward(gradient, qkv, forward, shape);
  const at::Tensor q = dense(qkv.q, 3, "attention q"), out = forward.out.view(qkv.q.sizes());
  const Keys keys = keys_of(qkv, shape);
  // The state of dropout's random numbers; dropout is off.
  const at::Tensor none = at::empty({}, q.options().dtype(at::kLong));
  if (backend == Backend::cudnn) {
    auto [dq, dk, dv] = at::_scaled_dot_product_cudnn_attention_backward(
        batched(gradient, shape), batched(q, shape), batched(keys.k, shape), batched(keys.v, shape),
        batched(out, shape), forward.softmax.at(0), none, none, at::Tensor(), at::Tensor(), at::Tensor(), shape.seq_len,
        shape.seq_len, 0.0, true, shape.scale);
    return gradient_of(by_token(dq), by_token(dk), by_token(dv), keys, qkv, shape);
  }
  const Documents documents = documents_of(shape, q.device());
  auto [dq, dk, dv] = at::_flash_attention_backward(gradient, q, keys.k, keys.v, out, forward.softmax.at(0),
                                                    documents.starts, documents.starts, documents.longest,
                                                    documents.longest, 0.0, true, none, none, shape.scale);
  return gradient_of(dq, dk, dv, keys, qkv, shape);
}

}  // namespace tessera::ops::cuda
