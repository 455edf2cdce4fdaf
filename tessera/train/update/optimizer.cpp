#include "tessera/train/update/optimizer.h"

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/ops/initialise/initialise.h"
#include "tessera/schedule/buckets.h"

namespace tessera::train {

std::vector<std::vector<schedule::ParameterId>> optimizer_buckets(runtime::Runtime& runtime) {
  std::vector<schedule::ParameterId> order = runtime.by_first_use();
  std::erase_if(order, [&](schedule::ParameterId id) { return !runtime.parameter(id).spec.trainable; });
  return schedule::optimizer_buckets(
      order, [&](schedule::ParameterId id) { return runtime.parameter(id).storage.shape.elements(); });
}

Optimizer::Optimizer(runtime::Runtime& runtime, const ops::AdamW& options, CastOrder order)
    : runtime_(runtime), options_(options), order_(order), cast_(runtime) {
  const base::Device device = runtime.parallel().device;
  for (schedule::ParameterId id = 0; id < runtime.parameters().weights(); ++id) {
    const shard::ShardedParameter& parameter = runtime.parameter(id);
    const auto elements = static_cast<std::size_t>(parameter.spec.trainable ? parameter.state_elements() : 0);
    const std::size_t bytes = elements * quant::size_of(parameter.types.accumulator);
    moments_.push_back({base::Buffer(bytes, device), base::Buffer(bytes, device)});
    moments_.back().exp_avg.fill_zero();
    moments_.back().exp_avg_sq.fill_zero();
  }
  if (!runtime.parallel().is_asynchronous()) return;
  for (int i = 0; i < kMaxUnconfirmed; ++i) uploads_.push_back(base::Buffer::pinned(sizeof(ops::StepChoices)));
  choices_ = base::Buffer(sizeof(ops::StepChoices), device);
  scalars_ = base::Buffer(sizeof(ops::StepScalars), device);
  counter_ = base::Buffer(sizeof(std::int64_t), device);
  set_updates(0);
}

void Optimizer::set_updates(std::int64_t updates) {
  TESSERA_CHECK(unconfirmed_ == 0, "cannot set the number of updates while {} updates are unconfirmed", unconfirmed_);
  updates_ = updates;
  if (counter_.size() > 0) base::copy_bytes(counter_.data(), &updates_, sizeof updates_);
}

// Returns whether the update itself writes the rounded weight. The update always writes a weight that is its own
// master. If a weight has a backward weight, the cast writes both of them.
bool Optimizer::is_fused(const shard::ShardedParameter& parameter) const {
  if (parameter.spec.backward) return false;
  return is_rounded_master(parameter) && (order_ == CastOrder::fused || !parameter.has_master());
}

ops::AdamWBuffers Optimizer::buffers_of(schedule::ParameterId id) {
  shard::ShardedParameter& parameter = runtime_.parameter(id);
  return {.master = parameter.state_master(),
          .master_type = parameter.types.accumulator,
          .weight = is_fused(parameter) ? parameter.state_weight() : nullptr,
          .weight_type = parameter.types.model,
          .gradient = parameter.state_gradient(),
          .gradient_type = parameter.gradient_type(),
          .exp_avg = moments(id).exp_avg.data(),
          .exp_avg_sq = moments(id).exp_avg_sq.data(),
          .count = parameter.state_elements(),
          .decays = parameter.spec.decay};
}

template <typename Update>
void Optimizer::update_bucket(std::span<const schedule::ParameterId> bucket, Update&& update) {
  std::vector<schedule::ParameterId> left;
  for (const schedule::ParameterId id : bucket)
    if (!is_fused(runtime_.parameter(id))) left.push_back(id);
  std::vector<shard::StateAmaxes> amaxes;
  if (order_ == CastOrder::fused) amaxes = cast_.places_of_amaxes(left);
  std::vector<ops::AdamWBuffers> shards;
  auto next = amaxes.begin();
  for (const schedule::ParameterId id : bucket) {
    shards.push_back(buffers_of(id));
    if (amaxes.empty() || is_fused(runtime_.parameter(id))) continue;
    shards.back().amax = next->first;
    shards.back().amax_elements = next->elements;
    shards.back().amax_offset = next++->offset;
  }
  update(shards);
  cast_.cast(left, !amaxes.empty());
  runtime_.program().publish(bucket);
}

void Optimizer::begin_update(double lr) {
  options_.lr = lr;
  options_.step = updates_ + 1;
  if (!runtime_.parallel().is_asynchronous()) return;
  TESSERA_CHECK(unconfirmed_ < kMaxUnconfirmed, "cannot begin an update while {} updates are unconfirmed, the maximum",
                unconfirmed_);
  ++unconfirmed_;
  // The buffer can be reused: the previous copy from this buffer is done, because its update is confirmed.
  base::Buffer& upload = uploads_[std::exchange(next_upload_, (next_upload_ + 1) % uploads_.size())];
  upload.as<ops::StepChoices>()[0] = ops::step_choices(options_);
  runtime_.parallel().kernels().copy(upload.data(), choices_.data(), sizeof(ops::StepChoices));
}

void Optimizer::update(const ops::Clip* clip) {
  if (runtime_.parallel().is_asynchronous()) return update_on_device(clip);
  if (clip->applies == 0) return;
  ++updates_;
  options_.gradient_scale = clip->factor;
  for (const std::vector<schedule::ParameterId>& bucket : optimizer_buckets(runtime_))
    update_bucket(bucket, [&](const std::vector<ops::AdamWBuffers>& shards) {
      for (const ops::AdamWBuffers& shard : shards) ops::adamw(options_, shard);
    });
}

void Optimizer::update_on_device(const ops::Clip* clip) {
  const base::CudaStream stream = runtime_.parallel().compute->stream();
  ops::StepScalars* scalars = scalars_.as<ops::StepScalars>().data();
  ops::cuda::choose_step(choices_.as<ops::StepChoices>().data(), clip, counter_.as<std::int64_t>().data(), scalars,
                         stream);
  for (const std::vector<schedule::ParameterId>& bucket : optimizer_buckets(runtime_))
    update_bucket(
        bucket, [&](const std::vector<ops::AdamWBuffers>& shards) { ops::cuda::adamw(shards, scalars, clip, stream); });
}

void Optimizer::confirm_update(const ops::Clip& clip) {
  if (unconfirmed_ == 0) return;  // on a CPU, every update is confirmed immediately
  --unconfirmed_;
  if (clip.applies != 0) ++updates_;
}

namespace {

// Runs on the stream if it is not null.
void fill_part(const shard::ParameterSpec& spec, const layout::Piece& piece, std::int64_t logical_cols,
               std::uint64_t seed, void* data, quant::DType type, base::CudaStream stream) {
  if (spec.initial_deviation == 0) {
    if (stream)
      ops::cuda::fill_constant(spec.initial_value, data, type, piece.box.elements(), stream);
    else
      ops::fill_constant(spec.initial_value, data, type, piece.box.elements());
    return;
  }
  const ops::NormalFill fill{.seed = seed,
                             .name = spec.name,
                             .standard_deviation = spec.initial_deviation,
                             .logical_cols = logical_cols,
                             .row = piece.box.row,
                             .col = piece.box.col,
                             .rows = piece.box.rows,
                             .cols = piece.box.cols,
                             .stride = piece.stride};
  if (stream)
    ops::cuda::fill_normal(fill, data, type, stream);
  else
    ops::fill_normal(fill, data, type);
}

}  // namespace

void set_initial_values(runtime::Runtime& runtime, std::uint64_t seed) {
  const shard::ParallelGroups& parallel = runtime.parallel();
  WeightCast cast(runtime);
  for (schedule::ParameterId id = 0; id < runtime.parameters().weights(); ++id) {
    shard::ShardedParameter& parameter = runtime.parameter(id);
    const quant::DType type = parameter.types.accumulator;
    std::byte* master = parameter.state_master();
    for (const layout::Piece& piece : parameter.local_state.pieces)
      fill_part(parameter.spec, piece, parameter.storage.shape.cols, seed,
                master + static_cast<std::size_t>(piece.offset) * quant::size_of(type), type,
                parallel.compute->stream());
    cast.cast({&id, 1});
    runtime.program().publish(id);
  }
}

}  // namespace tessera::train
