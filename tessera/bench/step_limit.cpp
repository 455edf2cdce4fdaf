#include <ATen/ops/randn.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <vector>

#include "tessera/base/cuda_only.h"
#include "tessera/bench/kernels/kernels_clock.h"
#include "tessera/bench/step.h"
#include "tessera/ops/aten_types.h"
#include "tessera/ops/attention/attention.h"
#include "tessera/ops/device/cached_memory.h"
#include "tessera/ops/gemm/gemm.h"
#include "tessera/ops/gemm/operand.h"
#include "tessera/ops/tensor.h"
#include "tessera/predict/planned_parameters.h"
#include "tessera/predict/update_bytes.h"
#include "tessera/settings/trainer_options.h"
#include "tessera/shard/parameter_layouts.h"
#include "tessera/shard/sizes.h"

namespace tessera::bench {
namespace {

using ops::ProductCall, ops::ProductSizes, ops::Work, ops::WorkKind;

// The limit is the time of a step without recompute.
predict::DryOptions limit_options(const StepBench& bench, int rank) {
  predict::DryOptions options = settings::dry_options(bench.run, {});
  options.rank = rank;
  return options;
}

double microbatches_of(const StepBench& bench) {
  return static_cast<double>(bench.run.microbatches());
}

// A product of random matrices, in the layer's type or with operands in a number format.
class RandomProduct {
 public:
  RandomProduct(const ProductSizes& sizes, const at::TensorOptions& options, at::ScalarType gradient) : sizes_(sizes) {
    const auto matrix = [&](std::int64_t rows, std::int64_t cols) { return at::randn({rows, cols}, options); };
    const bool is_gradient = sizes.call == ProductCall::wgrad, is_input_gradient = sizes.call == ProductCall::dgrad;
    if (is_gradient) result_ = at::randn({sizes.rows, sizes.cols}, options.dtype(gradient));
    const at::Tensor left = is_gradient ? matrix(sizes.inner, sizes.rows) : matrix(sizes.rows, sizes.inner);
    const at::Tensor right =
        is_gradient || is_input_gradient ? matrix(sizes.inner, sizes.cols) : matrix(sizes.cols, sizes.inner);
    if (sizes.call != ProductCall::operands) {
      left_ = left;
      right_ = right;
      return;
    }
    const auto quantized = [](const at::Tensor& tensor, const quant::Encoding& encoding) {
      const ops::WholeScale whole = ops::whole_scale(encoding, ops::amax_of(tensor));
      return ops::quantize(tensor, encoding, ops::Sides::rows, whole).rows;
    };
    left_operand_ = quantized(left, sizes.left);
    right_operand_ = quantized(right, sizes.right);
  }

  void operator()() {
    switch (sizes_.call) {
      case ProductCall::fprop:
        return static_cast<void>(ops::gemm_fprop(left_, right_));
      case ProductCall::dgrad:
        return static_cast<void>(ops::gemm_dgrad(left_, right_));
      case ProductCall::wgrad:
        return ops::gemm_wgrad(left_, right_, result_, false);
      case ProductCall::operands:
        return static_cast<void>(ops::multiply(left_operand_, right_operand_, sizes_.fast));
    }
  }

 private:
  ProductSizes sizes_;
  at::Tensor left_, right_, result_;
  ops::Operand left_operand_, right_operand_;
};

// Attention over random queries, keys and values.
class RandomAttention {
 public:
  RandomAttention(const ops::AttentionSizes& sizes, const at::TensorOptions& options) {
    shape_ = {.batch = sizes.batch,
              .seq_len = sizes.seq_len,
              .kv_of_q = {},
              .cu_seqlens = {},
              .scale = 1 / std::sqrt(static_cast<double>(sizes.head_dim))};
    for (std::int64_t head = 0; head < sizes.q_heads; ++head)
      shape_.kv_of_q.push_back(static_cast<int>(head * sizes.kv_heads / sizes.q_heads));
    const std::int64_t tokens = sizes.batch * sizes.seq_len;
    qkv_ = {at::randn({tokens, sizes.q_heads, sizes.head_dim}, options),
            at::randn({tokens, sizes.kv_heads, sizes.head_dim}, options),
            at::randn({tokens, sizes.kv_heads, sizes.head_dim}, options)};
    dout_ = at::randn({tokens, sizes.q_heads * sizes.head_dim}, options);
    forward_ = ops::attention_forward(qkv_, shape_);
  }

  void forward() { ops::attention_forward(qkv_, shape_); }
  void backward() { ops::attention_backward(dout_, qkv_, forward_, shape_); }

 private:
  ops::AttentionShape shape_;
  ops::Qkv qkv_;
  at::Tensor dout_;
  ops::Attention forward_;
};

// The operators of a microbatch as calls, in order. Copies represent operators that only read and write memory. Equal
// operators share their tensors.
class Calls {
 public:
  struct Part {
    WorkKind kind;
    std::function<void()> call;
  };

  // bytes: the bytes that all work except products and attention reads and writes.
  Calls(const StepBench& bench, const predict::DryStep& dry, double bytes, at::Device device)
      : options_(at::TensorOptions().device(device).dtype(ops::to_scalar_type(bench.run->dtype))),
        gradient_(ops::to_scalar_type(*bench.run->grad_wire)) {
    std::int64_t parts = 0;
    for (const std::vector<Work>& works : dry.work)
      for (const Work& work : works) parts += work.kind == WorkKind::attention_backward ? 1 : 0;
    make_copies(bytes, std::max<std::int64_t>(parts, 1), device);
    for (const std::vector<Work>& works : dry.work)
      for (const Work& work : works) add(work);
    if (parts == 0) add_copies();
  }

  const std::vector<Part>& parts() const { return parts_; }
  double bytes() const { return 2.0 * static_cast<double>(from_.numel() * copies_); }

 private:
  static constexpr double kCopyBytes = 256 << 20;  // largest number of bytes of one copy; caches hold far fewer bytes

  // Prepares copies that read and write an equal share of the bytes after each attention backward.
  void make_copies(double bytes, std::int64_t shares, at::Device device) {
    const double moved = bytes / static_cast<double>(shares) / 2;
    each_ = static_cast<std::int64_t>(std::ceil(moved / kCopyBytes));
    copies_ = each_ * shares;
    const std::int64_t copied =
        each_ == 0 ? 0 : static_cast<std::int64_t>(std::ceil(moved / static_cast<double>(each_)));
    from_ = ops::make({copied}, at::kByte, device);
    to_ = ops::make({copied}, at::kByte, device);
  }
  void add_copies() {
    parts_.push_back({WorkKind::memory, [this] {
                        for (std::int64_t copy = 0; copy < each_; ++copy) to_.copy_(from_);
                      }});
  }
  void add(const Work& work) {
    if (work.kind == WorkKind::product) {
      const auto [found, is_new] = products_.try_emplace(work.product, work.product, options_, gradient_);
      parts_.push_back({WorkKind::product, [product = &found->second] { (*product)(); }});
    }
    if (work.kind != WorkKind::attention_forward && work.kind != WorkKind::attention_backward) return;
    const auto [found, is_new] = attentions_.try_emplace(work.sizes, work.sizes, options_);
    RandomAttention* attention = &found->second;
    const bool is_backward = work.kind == WorkKind::attention_backward;
    parts_.push_back({WorkKind::attention_forward,
                      [attention, is_backward] { is_backward ? attention->backward() : attention->forward(); }});
    if (is_backward) add_copies();
  }

  const at::TensorOptions options_;
  const at::ScalarType gradient_;
  std::map<ProductSizes, RandomProduct> products_;
  std::map<ops::AttentionSizes, RandomAttention> attentions_;
  std::vector<Part> parts_;
  at::Tensor from_, to_;
  std::int64_t each_ = 0, copies_ = 0;  // number of copies in a share, and number of all copies
};

// Returns the bytes of the work at the end of a step and of its microbatches: the update, the gradient's norm, and the
// ordered sums of the gradient parts that gtp ranks send. Adds the update to `rules`.
std::int64_t update_bytes(const predict::DryOptions& options, const predict::DryStep& dry, std::int64_t microbatches,
                          std::vector<predict::RuleBytes>& rules) {
  std::int64_t bytes = 0;
  for (const shard::ParameterSpec& spec : dry.parameters) {
    const shard::Cuts& cuts = dry.cuts[static_cast<std::size_t>(spec.domain)];
    const shard::Place place = place_of(
        options.step.layout.mesh, options.step.layout.domains[static_cast<std::size_t>(spec.domain)], options.rank);
    const shard::ParameterTypes& types = shard::types_of(spec, options.step.types);
    const auto [summed, updated, squared, gradient] = predict::elements_of_rank(spec, options.step.types, cuts, place);
    const ops::UpdateRule& rule = options.update->rule_of(spec.name);
    const predict::UpdatedElements elements{
        .count = updated, .types = types, .gradient = gradient, .splits_master = splits_master(spec, types, cuts)};
    bytes += predict::update_bytes(rule, elements);
    add_to(rules, rule, elements);
    // If a single sum computes this rank's whole part of a gradient, the sum can also write the squares for the norm
    // (ShardedParameter::columns_of_sum).
    const bool sum_squares = spec.sharded && cuts.parts > 1 && cuts.replicas == 1 && summed > 0;
    if (!sum_squares) bytes += shard::bytes_of(squared, gradient);
    if (cuts.parts == 1) continue;
    bytes += predict::ordered_sum_bytes(summed, cuts.parts, types, /*is_first=*/true);
    bytes += (microbatches - 1) * predict::ordered_sum_bytes(summed, cuts.parts, types);
  }
  return bytes;
}

// Returns the bytes that a rank reads and writes to make one columnwise copy of each weight.
std::int64_t copied_bytes(const predict::DryOptions& options, const predict::DryStep& dry) {
  std::int64_t bytes = 0;
  for (const shard::ParameterSpec& spec : dry.parameters) {
    if (!reads_columnwise(spec)) continue;
    const shard::Cuts& cuts = dry.cuts[static_cast<std::size_t>(spec.domain)];
    const shard::ParameterTypes& types = shard::types_of(spec, options.step.types);
    bytes += 2 * parameter_size(spec, layouts_of(spec, cuts), types, cuts).columnwise;
  }
  return bytes;
}

// Returns the bytes that the operators of a step except products and attention read and write, and the bytes of the
// columnwise copies and of the work after the last pass.
double bytes_beside(const StepBench& bench, const predict::DryOptions& options, const predict::DryStep& dry,
                    std::vector<predict::RuleBytes>& rules) {
  double operators = 0;
  for (const std::vector<Work>& works : dry.work)
    for (const Work& work : works) operators += work.kind == WorkKind::memory ? work.bytes : 0;
  const std::int64_t microbatches = bench.run.microbatches();
  return static_cast<double>(microbatches) * operators +
         static_cast<double>(update_bytes(options, dry, microbatches, rules) + copied_bytes(options, dry));
}

}  // namespace

// Repeats the calls in the order of a step. An idle GPU is faster at first; later its power limit slows it down.
StepLimit measure_limit(const StepBench& bench, int rank, base::Device device) {
  const predict::DryOptions options = limit_options(bench, rank);
  const predict::DryStep dry = dry_step(options);
  const double microbatches = microbatches_of(bench);
  const bool is_gpu = device.kind == base::DeviceKind::cuda;
  StepLimit limit;
  limit.bytes = bytes_beside(bench, options, dry, limit.rules);
  const ops::CachedMemoryScope cached_memory(device);  // libtorch would keep the memory, which the training steps need
  {
    const std::unique_ptr<KernelClock> clock = is_gpu ? base::cuda_only<make_event_clock>() : make_wall_clock();
    const Calls calls(bench, dry, limit.bytes / microbatches, ops::to_device(device));
    std::vector<std::function<void()>> work;
    for (const Calls::Part& part : calls.parts()) work.push_back(part.call);
    std::map<WorkKind, double> seconds;
    const double min_seconds = is_gpu ? 1.5 : 0;  // seconds of the warm-up, and seconds of the measurement
    double passed = 0, counted = 0;
    for (int rounds = 0; rounds < 2 || counted < min_seconds; ++rounds) {
      const std::vector<double> times = clock->seconds_of_parts(work);
      const double round = std::accumulate(times.begin(), times.end(), 0.0);
      const bool counts = rounds > 0 && passed >= min_seconds;
      passed += round;
      if (!counts) continue;
      counted += round;
      ++limit.rounds;
      for (std::size_t i = 0; i < times.size(); ++i) seconds[calls.parts()[i].kind] += times[i];
    }
    limit.products = microbatches * seconds[WorkKind::product] / limit.rounds;
    limit.attention = microbatches * seconds[WorkKind::attention_forward] / limit.rounds;
    limit.copy_rate = calls.bytes() * limit.rounds / seconds[WorkKind::memory];
  }
  return limit;
}

}  // namespace tessera::bench
