#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <cmath>

#include "tessera/bench/kernels_clock.h"
#include "tessera/bench/step.h"
#include "tessera/ops/attention.h"
#include "tessera/ops/convert.h"
#include "tessera/ops/gemm.h"

namespace tessera::bench {
namespace {

// A rank's sizes where everything that tp cuts is cut evenly.
struct Sizes {
  double tokens, hidden, ffn, q, kv, vocabulary, layers, microbatches;
};
Sizes sizes_of(const StepBench& bench) {
  const train::TrainConfig& config = bench.config;
  const auto tp = static_cast<double>(config.tp);
  const auto of = [](std::int64_t value) { return static_cast<double>(value); };
  return {.tokens = of(config.micro_batch * config.seq_len),
          .hidden = of(bench.model.hidden_size),
          .ffn = of(bench.model.intermediate_size) / tp,
          .q = of(bench.model.num_heads * bench.model.head_dim) / tp,
          .kv = of(bench.model.num_kv_heads * bench.model.head_dim) / tp,
          .vocabulary = of(bench.model.vocab_size) / tp,
          .layers = of(bench.model.num_layers),
          .microbatches = of(config.global_batch / (config.micro_batch * config.gtp * config.dp))};
}

std::int64_t whole(double value) {
  return static_cast<std::int64_t>(std::ceil(value));
}

struct Timing {
  KernelClock& clock;
  at::TensorOptions options, accumulator;

  // Of one call, the shortest of some rounds.
  double seconds(const std::function<void()>& work) const {
    constexpr int kCalls = 4, kRounds = 3;
    double best = clock.seconds_of(1, [&](int) { work(); });
    for (int round = 0; round < kRounds; ++round)
      best = std::min(best, clock.seconds_of(kCalls, [&](int) { work(); }) / kCalls);
    return best;
  }
  double product(double tokens, double out, double in) const {
    const at::Tensor x = at::randn({whole(tokens), whole(in)}, options),
                     w = at::randn({whole(out), whole(in)}, options);
    const at::Tensor dy = at::randn({whole(tokens), whole(out)}, options);
    at::Tensor dw = at::randn({whole(out), whole(in)}, accumulator);
    return seconds([&] { ops::gemm_fprop(x, w); }) + seconds([&] { ops::gemm_dgrad(dy, w); }) +
           seconds([&] { ops::gemm_wgrad(dy, x, dw, false); });
  }
  double attention(const StepBench& bench) const {
    const std::int64_t tp = bench.config.tp, head_dim = bench.model.head_dim;
    const std::int64_t q_heads = bench.model.num_heads / tp,
                       kv_heads = std::max<std::int64_t>(bench.model.num_kv_heads / tp, 1);
    ops::AttentionShape shape{.batch = bench.config.micro_batch,
                              .seq_len = bench.config.seq_len,
                              .kv_of_q = {},
                              .cu_seqlens = {},
                              .scale = 1 / std::sqrt(static_cast<double>(head_dim))};
    for (std::int64_t head = 0; head < q_heads; ++head)
      shape.kv_of_q.push_back(static_cast<int>(head * kv_heads / q_heads));
    const std::int64_t tokens = shape.batch * shape.seq_len;
    const ops::Qkv qkv{at::randn({tokens, q_heads, head_dim}, options),
                       at::randn({tokens, kv_heads, head_dim}, options),
                       at::randn({tokens, kv_heads, head_dim}, options)};
    const at::Tensor dout = at::randn({tokens, q_heads * head_dim}, options);
    const ops::Attention forward = ops::attention_forward(qkv, shape);
    return seconds([&] { ops::attention_forward(qkv, shape); }) +
           seconds([&] { ops::attention_backward(dout, qkv, forward, shape); });
  }
  double copy_rate() const {
    const at::Tensor from = at::randn({std::int64_t{1} << (options.device().is_cuda() ? 28 : 24)}, accumulator);
    at::Tensor to = from.clone();
    return 2 * static_cast<double>(from.nbytes()) / seconds([&] { to.copy_(from); });
  }
};

// Each input read once and each output written once: two norms with their residuals, rope with the split, swiglu,
// forward and backward, in every layer; logits read for the sums and replaced by their gradient; AdamW; squares of the
// gradient; the ordered sum of the parts of a gradient that gtp ranks send.
double bytes_beside(const StepBench& bench, const Sizes& s) {
  const auto model = static_cast<double>(base::size_of(bench.config.dtype));
  const auto wire = static_cast<double>(base::size_of(*bench.config.grad_wire));
  const auto master = static_cast<double>(base::size_of(base::accumulator_of(bench.config.dtype)));
  const double norm = 4 * s.hidden * 2, rope = 2 * (s.q + 2 * s.kv) * 2, swiglu = 3 * s.ffn + 5 * s.ffn;
  const double token = s.layers * (2 * norm + rope + swiglu) + norm + 3 * s.vocabulary + 2 * s.hidden;
  const auto gtp = static_cast<double>(bench.config.gtp);
  const double own = static_cast<double>(nn::num_params(bench.model)) / static_cast<double>(bench.config.tp) / gtp;
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

StepLimit measure_limit(const StepBench& bench, base::Device device) {
  const Sizes s = sizes_of(bench);
  const std::unique_ptr<KernelClock> clock =
      device.kind == base::DeviceKind::cuda ? make_event_clock() : make_wall_clock();
  const auto options = at::TensorOptions().device(ops::to_device(device));
  const Timing timing{*clock, options.dtype(ops::to_scalar_type(bench.config.dtype)),
                      options.dtype(ops::to_scalar_type(base::accumulator_of(bench.config.dtype)))};
  const double layer = timing.product(s.tokens, s.q + 2 * s.kv, s.hidden) + timing.product(s.tokens, s.hidden, s.q) +
                       timing.product(s.tokens, 2 * s.ffn, s.hidden) + timing.product(s.tokens, s.hidden, s.ffn);
  StepLimit limit;
  limit.products = s.microbatches * (s.layers * layer + timing.product(s.tokens, s.vocabulary, s.hidden));
  limit.attention = s.microbatches * s.layers * timing.attention(bench);
  limit.bytes = bytes_beside(bench, s);
  limit.copy_rate = timing.copy_rate();
  if (device.kind == base::DeviceKind::cuda) at::accelerator::emptyCache();
  return limit;
}

}  // namespace tessera::bench
