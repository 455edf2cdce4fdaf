#include <ATen/ops/randn.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <vector>

#include "tessera/bench/kernels_clock.h"
#include "tessera/bench/step.h"
#include "tessera/models/decoder_model.h"
#include "tessera/ops/aten_types.h"
#include "tessera/ops/attention.h"
#include "tessera/ops/cached_memory.h"
#include "tessera/ops/gemm.h"
#include "tessera/ops/operand.h"
#include "tessera/ops/tensor.h"

namespace tessera::bench {
namespace {

// A rank's sizes where everything that tp cuts is cut evenly.
struct Sizes {
  double tokens, hidden, ffn, q, kv, vocabulary, layers, microbatches;
};
Sizes sizes_of(const StepBench& bench) {
  const run::TrainConfig& config = bench.config;
  const auto tp = static_cast<double>(config.tp);
  const auto of = [](std::int64_t value) { return static_cast<double>(value); };
  return {.tokens = of(config.micro_batch * config.seq_len),
          .hidden = of(models::decoder_of(*bench.model).hidden_size),
          .ffn = of(models::decoder_of(*bench.model).intermediate_size) / tp,
          .q = of(models::decoder_of(*bench.model).num_heads * models::decoder_of(*bench.model).head_dim) / tp,
          .kv = of(models::decoder_of(*bench.model).num_kv_heads * models::decoder_of(*bench.model).head_dim) / tp,
          .vocabulary = of(models::decoder_of(*bench.model).vocab_size) / tp,
          .layers = of(models::decoder_of(*bench.model).num_layers),
          .microbatches = of(config.global_batch / (config.micro_batch * config.gtp * config.dp))};
}

std::int64_t whole(double value) {
  return static_cast<std::int64_t>(std::ceil(value));
}

// What a microbatch calls, part by part, and what each part is.
enum class Work { products, attention, bytes };
struct Part {
  Work work;
  std::function<void()> call;
};

class Calls {
 public:
  Calls(const StepBench& bench, const Sizes& sizes, double bytes, at::Device device)
      : options_(at::TensorOptions().device(device).dtype(ops::to_scalar_type(bench.config.dtype))),
        gradient_(options_.dtype(ops::to_scalar_type(*bench.config.grad_wire))),
        format_(bench.config.gemm_format),
        recipe_(bench.config.fp8_recipe),
        layers_(models::decoder_of(*bench.model).num_layers),
        head_(product(sizes.tokens, sizes.vocabulary, sizes.hidden)) {
    layer_ = {layer_product(sizes.tokens, sizes.q + 2 * sizes.kv, sizes.hidden),
              layer_product(sizes.tokens, sizes.hidden, sizes.q),
              layer_product(sizes.tokens, 2 * sizes.ffn, sizes.hidden),
              layer_product(sizes.tokens, sizes.hidden, sizes.ffn)};
    make_attention(bench);
    const double moved = bytes / static_cast<double>(layers_) / 2;  // a layer's share: read, and written
    copies_ = whole(moved / kCopyBytes);
    const std::int64_t copied = copies_ == 0 ? 0 : whole(moved / static_cast<double>(copies_));
    from_ = ops::make({copied}, at::kByte, device);
    to_ = ops::make({copied}, at::kByte, device);
  }

  double bytes() const { return 2 * static_cast<double>(from_.numel() * copies_ * layers_); }
  // In the order of a step: forward, the output layer, backward; each layer's share of the bytes behind its backward.
  std::vector<Part> parts() const {
    std::vector<Part> parts;
    for (std::int64_t layer = 0; layer < layers_; ++layer) {
      parts.push_back({Work::products, [this] { std::ranges::for_each(layer_, forward); }});
      parts.push_back({Work::attention, [this] { ops::attention_forward(qkv_, shape_); }});
    }
    parts.push_back({Work::products, [this] {
                       forward(head_);
                       backward(head_);
                     }});
    for (std::int64_t layer = 0; layer < layers_; ++layer) {
      parts.push_back({Work::attention, [this] { ops::attention_backward(dout_, qkv_, forward_, shape_); }});
      parts.push_back({Work::products, [this] { std::ranges::for_each(layer_, backward); }});
      parts.push_back({Work::bytes, [this] {
                         for (std::int64_t copy = 0; copy < copies_; ++copy) to_.copy_(from_);
                       }});
    }
    return parts;
  }

 private:
  static constexpr double kCopyBytes = 256 << 20;  // at most, of a copy: far more than caches hold
  // What is multiplied; of products in a number format the operands.
  struct Product {
    at::Tensor x, w, dy, dw;
    ops::Operands input = {}, gradient = {}, weight = {};
  };

  static void forward(const Product& one) {
    if (!one.weight.rows.defined()) return static_cast<void>(ops::gemm_fprop(one.x, one.w));
    multiply(one.input.rows, one.weight.rows, /*fast=*/true);
  }
  static void backward(const Product& one) {
    at::Tensor dw = one.dw;
    if (!one.weight.rows.defined()) {
      ops::gemm_dgrad(one.dy, one.w);
      return ops::gemm_wgrad(one.dy, one.x, dw, false);
    }
    multiply(one.gradient.rows, one.weight.columns);
    multiply_into(one.gradient.columns, one.input.columns, dw, false);
  }
  Product layer_product(double tokens, double out, double in) const {
    Product one = product(tokens, out, in);
    if (format_ == quant::Format::bf16) return one;
    const auto quantized = [](const at::Tensor& matrix, const quant::Encoding& encoding) {
      return ops::quantize(matrix, encoding, ops::Sides::both, ops::whole_scale(encoding, ops::amax_of(matrix)));
    };
    one.input = quantized(one.x, input_encoding(format_));
    one.gradient = quantized(one.dy, gradient_encoding(format_, recipe_));
    one.weight = quantized(one.w, weight_encoding(format_));
    return one;
  }
  Product product(double tokens, double out, double in) const {
    return {.x = at::randn({whole(tokens), whole(in)}, options_),
            .w = at::randn({whole(out), whole(in)}, options_),
            .dy = at::randn({whole(tokens), whole(out)}, options_),
            .dw = at::randn({whole(out), whole(in)}, gradient_)};
  }
  void make_attention(const StepBench& bench) {
    const std::int64_t tp = bench.config.tp, head_dim = models::decoder_of(*bench.model).head_dim;
    const std::int64_t q_heads = models::decoder_of(*bench.model).num_heads / tp,
                       kv_heads = std::max<std::int64_t>(models::decoder_of(*bench.model).num_kv_heads / tp, 1);
    shape_ = {.batch = bench.config.micro_batch,
              .seq_len = bench.config.seq_len,
              .kv_of_q = {},
              .cu_seqlens = {},
              .scale = 1 / std::sqrt(static_cast<double>(head_dim))};
    for (std::int64_t head = 0; head < q_heads; ++head)
      shape_.kv_of_q.push_back(static_cast<int>(head * kv_heads / q_heads));
    const std::int64_t tokens = shape_.batch * shape_.seq_len;
    qkv_ = {at::randn({tokens, q_heads, head_dim}, options_), at::randn({tokens, kv_heads, head_dim}, options_),
            at::randn({tokens, kv_heads, head_dim}, options_)};
    dout_ = at::randn({tokens, q_heads * head_dim}, options_);
    forward_ = ops::attention_forward(qkv_, shape_);
  }

  const at::TensorOptions options_, gradient_;
  const quant::Format format_;
  const quant::Fp8Recipe recipe_;
  const std::int64_t layers_;
  std::vector<Product> layer_;
  const Product head_;
  ops::AttentionShape shape_;
  ops::Qkv qkv_;
  at::Tensor dout_, from_, to_;
  ops::Attention forward_;
  std::int64_t copies_ = 0;  // a layer
};

// Each input read once and each output written once: two norms with their residuals, rope with the split, swiglu,
// forward and backward, in every layer; logits read for the sums and replaced by their gradient; AdamW; squares of the
// gradient; the ordered sum of the parts of a gradient that gtp ranks send.
double bytes_beside(const StepBench& bench, const Sizes& s) {
  const auto model = static_cast<double>(quant::size_of(bench.config.dtype));
  const auto wire = static_cast<double>(quant::size_of(*bench.config.grad_wire));
  const auto master = static_cast<double>(quant::size_of(quant::accumulator_of(bench.config.dtype)));
  const double norm = 4 * s.hidden * 2, rope = 2 * (s.q + 2 * s.kv) * 2, swiglu = 3 * s.ffn + 5 * s.ffn;
  const double token = s.layers * (2 * norm + rope + swiglu) + norm + 3 * s.vocabulary + 2 * s.hidden;
  const auto gtp = static_cast<double>(bench.config.gtp);
  const double own = static_cast<double>(models::num_params(*bench.model)) / static_cast<double>(bench.config.tp) / gtp;
  const double adamw = own * (7 * master + model), squares = own * master;
  const double sums = gtp == 1 ? 0 : own * (gtp * wire + (2 - 1 / s.microbatches) * master);
  return s.microbatches * (s.tokens * token * model + sums) + adamw + squares;
}

}  // namespace

double step_flops(const StepBench& bench) {
  const Sizes s = sizes_of(bench);
  const double weights = s.layers * s.hidden * (2 * s.q + 2 * s.kv + 3 * s.ffn) + s.hidden * s.vocabulary;
  const double seq = static_cast<double>(bench.config.seq_len);
  const double attention = s.layers * 2 * s.tokens * seq * s.q * 3.5;  // half the scores; backward 2.5 times as much
  return s.microbatches * (6 * weights * s.tokens + attention);
}

// Again and again, as steps come: a GPU that has rested runs faster than it can go on, until its power limit slows it.
StepLimit measure_limit(const StepBench& bench, base::Device device) {
  const Sizes s = sizes_of(bench);
  const bool is_gpu = device.kind == base::DeviceKind::cuda;
  StepLimit limit{.bytes = bytes_beside(bench, s)};
  const ops::CachedMemoryScope cached_memory(device);  // the steps need it
  {
    const std::unique_ptr<KernelClock> clock = is_gpu ? make_event_clock() : make_wall_clock();
    const Calls calls(bench, s, limit.bytes / s.microbatches, ops::to_device(device));
    std::vector<std::function<void()>> work;
    const std::vector<Part> parts = calls.parts();
    for (const Part& part : parts) work.push_back(part.call);
    std::map<Work, double> seconds;
    const double settled = is_gpu ? 1.5 : 0;  // seconds before those that count, and of those
    double passed = 0, counted = 0;
    for (int rounds = 0; rounds < 2 || counted < settled; ++rounds) {
      const std::vector<double> times = clock->seconds_of_parts(work);
      const double round = std::accumulate(times.begin(), times.end(), 0.0);
      const bool counts = rounds > 0 && passed >= settled;
      passed += round;
      if (!counts) continue;
      counted += round;
      ++limit.rounds;
      for (std::size_t i = 0; i < times.size(); ++i) seconds[parts[i].work] += times[i];
    }
    limit.products = s.microbatches * seconds[Work::products] / limit.rounds;
    limit.attention = s.microbatches * seconds[Work::attention] / limit.rounds;
    limit.copy_rate = calls.bytes() * limit.rounds / seconds[Work::bytes];
  }
  return limit;
}

}  // namespace tessera::bench
