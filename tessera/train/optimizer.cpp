#include "tessera/train/optimizer.h"

#include <algorithm>

#include "tessera/comm/kernels.h"
#include "tessera/ops/initialise.h"

namespace tessera::train {

double clip_factor(double norm, double clip) {
  return clip == 0 ? 1.0 : std::min(1.0, clip / (norm + 1e-6));
}

std::vector<std::vector<shard::ParameterId>> optimizer_buckets(shard::Runtime& runtime) {
  std::int64_t total = 0;
  std::vector<shard::ParameterId> order;
  for (const shard::ParameterId id : runtime.by_first_use()) {
    if (!runtime.parameter(id).spec.trainable) continue;
    order.push_back(id);
    total += runtime.parameter(id).storage.shape.elements();
  }
  std::vector<std::vector<shard::ParameterId>> buckets;
  std::int64_t before = 0, newest = -1;  // elements placed so far; which eighth the newest bucket began in
  for (const shard::ParameterId id : order) {
    const std::int64_t part = before * kOptimizerBuckets / std::max<std::int64_t>(total, 1);
    if (buckets.empty() || part > newest) buckets.emplace_back();
    newest = part;
    buckets.back().push_back(id);
    before += runtime.parameter(id).storage.shape.elements();
  }
  return buckets;
}

Optimizer::Optimizer(shard::Runtime& runtime, const ops::AdamW& options) : runtime_(runtime), options_(options) {
  for (shard::ParameterId id = 0; id < runtime.size(); ++id) {
    const shard::ShardedParameter& parameter = runtime.parameter(id);
    const auto elements = static_cast<std::size_t>(parameter.spec.trainable ? parameter.state_elements() : 0);
    const std::size_t bytes = elements * base::size_of(parameter.types.accumulator);
    moments_.push_back({base::Buffer(bytes), base::Buffer(bytes)});
    moments_.back().exp_avg.fill_zero();
    moments_.back().exp_avg_sq.fill_zero();
  }
}

void Optimizer::update(double lr, double gradient_scale) {
  ++updates_;
  for (const std::vector<shard::ParameterId>& bucket : optimizer_buckets(runtime_)) {
    for (const shard::ParameterId id : bucket) update(id, lr, gradient_scale);
    runtime_.publish(bucket);
  }
}

void Optimizer::update(shard::ParameterId id, double lr, double gradient_scale) {
  shard::ShardedParameter& parameter = runtime_.parameter(id);
  ops::AdamW options = options_;
  options.lr = lr;
  options.step = updates_;
  options.gradient_scale = gradient_scale;
  if (!parameter.spec.decay) options.weight_decay = 0;
  ops::adamw(options, {.master = parameter.state_master(),
                       .master_type = parameter.types.accumulator,
                       .weight = parameter.state_weight(),
                       .weight_type = parameter.types.model,
                       .gradient = parameter.state_gradient(),
                       .gradient_type = parameter.types.accumulator,
                       .exp_avg = moments(id).exp_avg.data(),
                       .exp_avg_sq = moments(id).exp_avg_sq.data(),
                       .count = parameter.state_elements()});
}

void set_initial_values(shard::Runtime& runtime, std::uint64_t seed) {
  for (shard::ParameterId id = 0; id < runtime.size(); ++id) {
    shard::ShardedParameter& parameter = runtime.parameter(id);
    const base::DType type = parameter.types.accumulator;
    std::byte* master = parameter.state_master();
    for (const layout::Piece& piece : parameter.local_state.pieces) {
      std::byte* data = master + static_cast<std::size_t>(piece.offset) * base::size_of(type);
      if (parameter.spec.initial_deviation == 0) {
        ops::fill_constant(parameter.spec.initial_value, data, type, piece.box.elements());
        continue;
      }
      ops::fill_normal({.seed = seed,
                        .name = parameter.spec.name,
                        .standard_deviation = parameter.spec.initial_deviation,
                        .logical_cols = parameter.storage.shape.cols,
                        .row = piece.box.row,
                        .col = piece.box.col,
                        .rows = piece.box.rows,
                        .cols = piece.box.cols,
                        .stride = piece.stride},
                       data, type);
    }
    if (parameter.has_master())
      comm::cast(master, type, parameter.state_weight(), parameter.types.model, parameter.state_elements());
    runtime.publish(id);
  }
}

}  // namespace tessera::train
